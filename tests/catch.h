// catch.h - the one place that knows which Catch2 is installed: version 2 (Debian 12) or version 3 (Ubuntu 24.04).
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
