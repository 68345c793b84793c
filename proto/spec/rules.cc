#include "proto/spec/rules.h"
