"""What is installed and what is missing."""

from __future__ import annotations

from importlib import metadata

from gqe import doctor


def test_versions_and_threads_are_those_of_this_process() -> None:
    import torch

    found = doctor.examine()
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["devices"][0].startswith("cpu: ")
    assert found["threads"].startswith(f"{torch.get_num_threads()} ")


def test_a_missing_package_is_named_with_the_command_that_adds_it(monkeypatch) -> None:
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "pgvector" else real(name))
    parts = {part.name: part for part in doctor.extras()}
    assert parts["pgvector"].missing == ["pgvector>=0.4"]
    assert parts["pgvector"].command == "pip install 'gqe[pgvector]'"
    assert "pgvector>=0.4" in parts["stores"].missing  # made of others
    assert "pgvector>=0.4" not in parts["qdrant"].missing
    assert not {"all", "dev"} & set(parts)


def test_a_package_that_is_too_old_counts_as_missing(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "0.0.1")
    assert {part.name: part for part in doctor.extras()}["pgvector"].missing == [
        "pgvector>=0.4",
        "psycopg>=3.2",
    ]
