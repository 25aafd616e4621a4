// main_host.cpp - the test program for everything that needs no GPU. Alone in its file: with Catch2 version 2 the whole
// framework is compiled here.
#define CATCH_CONFIG_RUNNER
#include "tests/catch.h"

int main(int argument_count, char** arguments) { return Catch::Session().run(argument_count, arguments); }
