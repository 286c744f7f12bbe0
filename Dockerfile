# The search service. docker build -t gqe . && docker run -p 8080:8080 -v "$PWD/my-index:/index" gqe
FROM python:3.12-slim

# The build of torch for CPUs: that of the default index brings gigabytes of CUDA.
RUN pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu

COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir "/src[serve,stores]" && rm -r /src

RUN useradd --create-home gqe
USER gqe
EXPOSE 8080
# It is healthy when the index is open and its files can be read.
HEALTHCHECK --start-period=60s --interval=30s --timeout=5s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/ready', timeout=4)"]
ENTRYPOINT ["gqe", "serve", "--host", "0.0.0.0", "--port", "8080"]
CMD ["/index"]
