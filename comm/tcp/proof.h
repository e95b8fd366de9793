// SPDX-License-Identifier: Apache-2.0

// Nonces, and proofs that a process knows its job's token. A proof is the HMAC-SHA-256 (libsodium),
// under the token, of the messages of both sides. Private to comm/tcp.
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

// Random, from the operating system. Throws Error if the system has no source of random numbers.
Nonce NewNonce();

// `label` names the kind of message, so that a proof of one kind is not valid for another. The
// parts must have fixed sizes, because only their concatenation is proved.
Proof Prove(std::string_view token, std::string_view label,
            std::initializer_list<std::string_view> parts);
// Takes the same time for every wrong proof.
bool Proves(const Proof& proof, std::string_view token, std::string_view label,
            std::initializer_list<std::string_view> parts);

}  // namespace apogee::comm::tcp

#endif  // APOGEE_COMM_TCP_PROOF_H_
