// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/tcp/proof.h"

#include <sodium.h>

#include "apogee/core/error.h"

namespace apogee::comm::tcp {
namespace {

static_assert(sizeof(Proof) == crypto_auth_hmacsha256_BYTES);

const unsigned char* Bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

Nonce NewNonce() {
  APOGEE_CHECK(sodium_init() >= 0, "libsodium finds no source of random numbers on this machine");
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Proof Prove(std::string_view token, std::string_view label,
            std::initializer_list<std::string_view> parts) {
  crypto_auth_hmacsha256_state state;
  // A token may be empty; its address must not.
  crypto_auth_hmacsha256_init(&state, token.empty() ? Bytes("") : Bytes(token), token.size());
  crypto_auth_hmacsha256_update(&state, Bytes(label), label.size());
  const unsigned char end_of_label = 0;
  crypto_auth_hmacsha256_update(&state, &end_of_label, 1);
  for (const std::string_view part : parts) {
    crypto_auth_hmacsha256_update(&state, Bytes(part), part.size());
  }
  Proof proof;
  crypto_auth_hmacsha256_final(&state, proof.data());
  sodium_memzero(&state, sizeof(state));
  return proof;
}

bool Proves(const Proof& proof, std::string_view token, std::string_view label,
            std::initializer_list<std::string_view> parts) {
  const Proof right = Prove(token, label, parts);
  return crypto_verify_32(proof.data(), right.data()) == 0;
}

}  // namespace apogee::comm::tcp
