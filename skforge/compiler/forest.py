"""Where skforge 0.1.0 had its forests: a pickle of 0.1.0 asks for this module."""

from skforge._version import check_format

check_format(1, "0.1.0", "The pickle")
