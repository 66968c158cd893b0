"""The version and the name to install by: here, where every module can read them."""

__version__ = "0.1.0"

#: What pip installs. The import is ``skforge``; that name belongs to another project
#: on the package index.
DISTRIBUTION = "skforge-compiler"
