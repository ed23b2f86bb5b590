"""One implementation a file or package; `kernels.registry` discovers them by listing this folder."""
