# SPDX-License-Identifier: Apache-2.0

# Cross-compilation with `zig c++`, which carries the headers and libraries of many systems:
#
#   cmake -B build/x -DCMAKE_TOOLCHAIN_FILE=cmake/zig.cmake -DDPFTRL_ZIG_TARGET=x86_64-windows-gnu
#
# DPFTRL_PYTHON is an interpreter with the ziglang package (python3 by default).

if(NOT DPFTRL_ZIG_TARGET MATCHES "^([a-z0-9_]+)-([a-z]+)([-.]|$)")
  message(FATAL_ERROR "DPFTRL_ZIG_TARGET: expected PROCESSOR-SYSTEM[-LIBC], got '${DPFTRL_ZIG_TARGET}'")
endif()
set(CMAKE_SYSTEM_PROCESSOR "${CMAKE_MATCH_1}")
set(CMAKE_SYSTEM_NAME "${CMAKE_MATCH_2}")
if(CMAKE_SYSTEM_NAME STREQUAL "macos")
  set(CMAKE_SYSTEM_NAME Darwin)
  set(CMAKE_OSX_SYSROOT "")
  set(CMAKE_OSX_DEPLOYMENT_TARGET "")
elseif(CMAKE_SYSTEM_NAME STREQUAL "windows")
  set(CMAKE_SYSTEM_NAME Windows)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DPFTRL_ZIG_TARGET DPFTRL_PYTHON)
# Linking without optimisation would compile the C++ library a second time.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)

if(NOT DPFTRL_PYTHON)
  set(DPFTRL_PYTHON python3)
endif()

# CMake wants one program each for the compiler, ar and ranlib.
set(tools "${CMAKE_CURRENT_LIST_DIR}/../build/zig")
foreach(tool IN ITEMS c++ ar ranlib)
  set(script "#!/bin/sh\nexec \"${DPFTRL_PYTHON}\" -m ziglang ${tool} \"$@\"\n")
  set(written "")
  if(EXISTS "${tools}/zig-${tool}")
    file(READ "${tools}/zig-${tool}" written)
  endif()
  if(NOT written STREQUAL script)
    file(WRITE "${tools}/zig-${tool}.new" "${script}")
    file(CHMOD "${tools}/zig-${tool}.new" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
    file(RENAME "${tools}/zig-${tool}.new" "${tools}/zig-${tool}")
  endif()
endforeach()
set(CMAKE_CXX_COMPILER "${tools}/zig-c++")
set(CMAKE_CXX_COMPILER_TARGET "${DPFTRL_ZIG_TARGET}")
set(CMAKE_AR "${tools}/zig-ar")
set(CMAKE_RANLIB "${tools}/zig-ranlib")
# GNU's tools read the formats of this system only. Without LLVM's there is no test of the object code.
find_program(DPFTRL_LLVM_NM NAMES llvm-nm llvm-nm-19 llvm-nm-14)
find_program(DPFTRL_LLVM_OBJDUMP NAMES llvm-objdump llvm-objdump-19 llvm-objdump-14)
if(DPFTRL_LLVM_NM AND DPFTRL_LLVM_OBJDUMP)
  set(CMAKE_NM "${DPFTRL_LLVM_NM}")
  set(CMAKE_OBJDUMP "${DPFTRL_LLVM_OBJDUMP}")
else()
  set(CMAKE_NM "")
  set(CMAKE_OBJDUMP "")
endif()

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
