# SPDX-License-Identifier: Apache-2.0

# cmake -DNM= -DOBJDUMP= -DLIBRARY=libdpftrl_core.a -P check_object_code.cmake
#
# 1. No fused multiply-add in the core: a contracted product and sum would change the stream's bits.
# 2. No weak function in the kernels that are compiled for more than the baseline. An inline function that was not
#    inlined is one, and the linker keeps one copy for all files: the AVX-512 copy could be called by scalar code.

execute_process(
  COMMAND "${OBJDUMP}" --disassemble --no-show-raw-insn "${LIBRARY}"
  OUTPUT_VARIABLE code
  RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "objdump ended with ${status}")
endif()
if(NOT code MATCHES "ret")
  message(FATAL_ERROR "objdump shows no code in ${LIBRARY}")
endif()
# x86: vfmadd, vfmsub, vfnmadd, vfnmsub, vfmaddsub; aarch64: fmadd, fmsub, fnmadd, fnmsub, fmla, fmls.
string(REGEX MATCHALL "\t(vfn?m(add|sub)[a-z0-9]*|fn?m(add|sub)|fml[as])[ \t][^\n]*" fused "${code}")
if(fused)
  list(LENGTH fused n_fused)
  list(GET fused 0 first)
  message(FATAL_ERROR "${n_fused} fused multiply-adds in the core, the first: ${first}")
endif()

execute_process(
  COMMAND "${NM}" --defined-only "${LIBRARY}"
  OUTPUT_VARIABLE symbols
  RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "nm ended with ${status}")
endif()
string(REPLACE "\n" ";" symbols "${symbols}")
set(member "")
set(weak "")
set(n_kernels 0)
foreach(line IN LISTS symbols)
  if(line MATCHES "^([a-z0-9_]+)\\.cpp\\.(o|obj):$")
    set(member "${CMAKE_MATCH_1}")
    if(member MATCHES "_(avx2|avx512|neon)$")
      math(EXPR n_kernels "${n_kernels} + 1")
    endif()
  elseif(member MATCHES "_(avx2|avx512)$" AND line MATCHES " W (.*)$")
    list(APPEND weak "${member}: ${CMAKE_MATCH_1}")
  endif()
endforeach()
if(weak)
  list(JOIN weak "\n  " text)
  message(FATAL_ERROR "weak functions in files with instruction-set flags (make them static, or force them inline):\n  ${text}")
endif()
message(STATUS "no fused multiply-add, no weak function in ${n_kernels} kernel files")
