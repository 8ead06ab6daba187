// SPDX-License-Identifier: Apache-2.0
#pragma once

// Minimax polynomials of the Gaussian transform, lowest power first, made by
// docs/internals/derivations/fit_polynomials.py.
//   log:    -2 ln(1 + f) / f            on f in [-1/2, 0], relative error 2.3e-8 (f32), 6.7e-18 (f64)
//   cosine: cos(pi/4 sqrt(y))           on y in [0, 1],    absolute error 2.8e-8, 3.1e-20
//   sine:   sin(pi/4 sqrt(y)) / sqrt(y) on y in [0, 1],    relative error 3.3e-9, 3.4e-18

namespace dpftrl::coefficients {

inline constexpr float kLog32[9] = {-0x1.0p+1f,      0x1.fffe2p-1f,   -0x1.55b59ap-1f, 0x1.f14438p-2f, -0x1.1413aep-1f,
                                    -0x1.a0caaap-2f, -0x1.41f272p+1f, -0x1.b21bap+1f,  -0x1.70e9fp+1f};
inline constexpr double kLog64[21] = {-0x1.0p+1,
                                      0x1.fffffffffff3p-1,
                                      -0x1.555555556402bp-1,
                                      0x1.fffffff2da2p-2,
                                      -0x1.99999cb6ba1e7p-2,
                                      0x1.5554e1fb7b118p-2,
                                      -0x1.249d6709bfe6bp-2,
                                      0x1.fe7da056270cp-3,
                                      -0x1.da4e7efe2967cp-3,
                                      0x1.c42b8fec7054ap-4,
                                      -0x1.acf2c0e303719p-1,
                                      -0x1.c713550e291c7p+1,
                                      -0x1.0a1f737700f48p+4,
                                      -0x1.c714c333f4925p+5,
                                      -0x1.33aa8446b2d01p+7,
                                      -0x1.3f47268e19677p+8,
                                      -0x1.f67849474dc85p+8,
                                      -0x1.218d8c6ae5d4bp+9,
                                      -0x1.cf32b587663dp+8,
                                      -0x1.ccbb87662b9cp+7,
                                      -0x1.b3312f555a3edp+5};
inline constexpr float kCos32[4] = {0x1.0p+0f, -0x1.3bd392p-2f, 0x1.03af5cp-6f, -0x1.4e5ed6p-12f};
inline constexpr double kCos64[8] = {0x1.0p+0,
                                     -0x1.3bd3cc9be45dep-2,
                                     0x1.03c1f081b5aacp-6,
                                     -0x1.55d3c7e3c90fdp-12,
                                     0x1.e1f50683565a9p-19,
                                     -0x1.a6d1ec795faf9p-26,
                                     0x1.f9cc4154b7f1bp-34,
                                     -0x1.b264cc8f5a8a1p-42};
inline constexpr float kSin32[4] = {0x1.921fb6p-1f, -0x1.4abbbap-4f, 0x1.465e92p-9f, -0x1.2d9302p-15f};
inline constexpr double kSin64[7] = {0x1.921fb54442d18p-1,   -0x1.4abbce625be41p-4, 0x1.466bc677587p-9,
                                     -0x1.32d2cce2d5418p-15, 0x1.50782fca4376cp-22, -0x1.e30063a95bdb2p-30,
                                     0x1.e3eed8c16e6f1p-38};
inline constexpr float kTwoLn2F32 = 0x1.62e43p+0f;
inline constexpr double kTwoLn2F64 = 0x1.62e42fefa39efp+0;

}  // namespace dpftrl::coefficients
