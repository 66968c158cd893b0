"""Do converters of forests give the bits of the library that trained the model?

``traits.py`` has what is asked, a small model and rows for each trait and library;
``converters.py`` how each converter is called. ``compose.py`` puts both together, into
the files of ``cells/``. Each of these runs alone. ``python -m benchmarks.same_bits``
runs all of them and writes the table.
"""
