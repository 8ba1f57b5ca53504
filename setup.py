"""Finds the packages: `structgrad` and its layers lie in folders at the top of the repository."""

from setuptools import find_packages, setup

FOLDERS = {"structgrad": "reports/package", **{f"structgrad.{room}": room for room in ("oracles", "estimators", "suites", "reports")}}

inner = (f"{name}.{package}" for name, folder in FOLDERS.items() for package in find_packages(folder, exclude=["package"]))
setup(package_dir=FOLDERS, packages=[*FOLDERS, *inner])
