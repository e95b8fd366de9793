# `cmake --install`, find_package(apogee) and pkg-config.
