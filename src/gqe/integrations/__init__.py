"""Thin adapters to what people run: FAISS, LangChain, LlamaIndex, Haystack."""
