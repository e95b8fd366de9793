// SPDX-License-Identifier: Apache-2.0

// Nonces, and proofs that a process knows its job's token: HMAC-SHA-256 (libsodium) of what both
// sides have said, under the token. Private to comm/tcp.
//
//   const Nonce mine = NewNonce();
//   hello.proof = Prove(job.token, "hello", {BytesOf(call), BytesOf(challenge)});
//   if (Proves(hello.proof, job.token, "hello", {BytesOf(call), BytesOf(challenge)})) ...
#ifndef APOGEE_COMM_TCP_PROOF_H_
#define APOGEE_COMM_TCP_PROOF_H_

#include <array>
#include <initializer_list>
#include <string_view>

namespace apogee::comm::tcp {

using Nonce = std::array<unsigned char, 32>;
using Proof = std::array<unsigned char, 32>;

// From the system's source of random numbers. Throws Error where there is none.
Nonce NewNonce();

// `label` says which message it is of, so that the proof of one is none of another. The parts must
// be of fixed sizes: only what they are joined to is proved.
Proof Prove(std::string_view token, std::string_view label,
            std::initializer_list<std::string_view> parts);
// Takes as long for every wrong proof.
bool Proves(const Proof& proof, std::string_view token, std::string_view label,
            std::initializer_list<std::string_view> parts);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_PROOF_H_
