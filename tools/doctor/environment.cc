// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/doctor/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "apogee/comm/mpi/transport.h"
#include "apogee/comm/tcp/job.h"

namespace apogee::tools::doctor {
namespace {

bool StartsWithAny(const std::string& name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

bool IsShown(const std::string& name) {
  static const std::vector<std::string> kPrefixes = {
      "OMP_",      "GOMP_", "KMP_",   "DNNL_",   "ONEDNN_", "OMPI_MCA_", "PMIX_MCA_",
      "PRTE_MCA_", "UCX_",  "FI_",    "MPICH_",  "I_MPI_",  "MV2_",      "HYDRA_",
      "NCCL_",     "CUDA_", "SLURM_", "MALLOC_", "APOGEE_"};
  static const std::vector<std::string> kNames = {"LD_PRELOAD",
                                                  "LD_LIBRARY_PATH",
                                                  "GLIBC_TUNABLES",
                                                  "TMPDIR",
                                                  "OMPI_COMM_WORLD_SIZE",
                                                  "OMPI_COMM_WORLD_RANK",
                                                  "PMI_SIZE",
                                                  "PMI_RANK",
                                                  "PMIX_RANK",
                                                  "OMPI_ALLOW_RUN_AS_ROOT"};
  return StartsWithAny(name, kPrefixes) ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// SLURM_JWT, SLURM_JOB_NODELIST, OMPI_MCA_orte_precondition_transports, ...
bool IsPrivate(std::string name) {
  static const std::vector<std::string> kParts = {
      "TOKEN",   "SECRET",     "PASS",      "KEY",      "JWT",          "CRED", "AUTH",
      "COOKIE",  "HOST",       "NODELIST",  "NODENAME", "NODE_ALIASES", "ADDR", "ACCOUNT",
      "USER",    "TRANSPORTS", "URI",       "JOB_NAME", "EMAIL",        "MAIL", "QOS",
      "COMMENT", "CLUSTER",    "PARTITION", "UID",      "GID"};
  for (char& c : name) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return std::any_of(kParts.begin(), kParts.end(),
                     [&](const std::string& part) { return name.find(part) != std::string::npos; });
}

}  // namespace

void AddEnvironment(const char* const* variables, Report& report) {
  report.Begin("environment");
  std::vector<std::string> shown;
  for (; *variables != nullptr; ++variables) {
    const std::string variable = *variables;
    if (IsShown(variable.substr(0, variable.find('=')))) shown.push_back(variable);
  }
  std::sort(shown.begin(), shown.end());
  for (const std::string& variable : shown) {
    constexpr size_t kMaxValue = 200;
    const size_t equals = variable.find('=');
    const std::string name = variable.substr(0, equals);
    std::string value = equals == std::string::npos ? "" : variable.substr(equals + 1);
    if (value.size() > kMaxValue) value = value.substr(0, kMaxValue) + "...";
    report.Add(name, IsPrivate(name) ? "(set, not shown)" : value);
    if (name == "LD_PRELOAD" && !value.empty()) {
      report.Advise(
          "LD_PRELOAD is set: another library comes first in every process, and may "
          "replace MPI's or OpenMP's; unset LD_PRELOAD and try again");
    }
  }
  if (shown.empty()) report.Add("(none that matters)", "");
}

std::optional<Started> StartedBy() {
  if (const auto job = comm::tcp::JobInEnvironment(); job.ok() && *job) {
    return Started{"apogee run", (*job)->rank, (*job)->size};
  }
  const std::optional<int> size = comm::mpi::ProcessesInEnvironment();
  if (!size) return std::nullopt;
  Started started{"a launcher with PMI", 0, std::max(1, *size)};
  for (const auto& [name, by] : std::vector<std::pair<const char*, const char*>>{
           {"OMPI_COMM_WORLD_RANK", "mpirun (Open MPI)"},
           {"PMI_RANK", std::getenv("SLURM_PROCID") != nullptr ? "srun (PMI)" : "mpiexec (PMI)"},
           {"PMIX_RANK", "srun (PMIx)"}}) {
    if (const char* rank = std::getenv(name)) {
      return Started{by, std::atoi(rank), started.size};
    }
  }
  return started;
}

void ForgetLauncher() {
  std::vector<std::string> names;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::string name = text.substr(0, text.find('='));
    if (StartsWithAny(name,
                      {"OMPI_COMM_", "OMPI_UNIVERSE_", "OMPI_APP_", "PMI_", "PMIX_RANK",
                       "PMIX_NAMESPACE", "PMIX_SERVER_", "PMIX_SECURITY_", "HYDI_", "OMPI_MCA_ess",
                       "OMPI_MCA_orte_ess", "OMPI_MCA_pmix", "OMPI_MCA_orte_hnp"})) {
      names.push_back(name);
    }
  }
  const auto& of_tcp = comm::tcp::JobVariables();
  names.insert(names.end(), of_tcp.begin(), of_tcp.end());
  for (const std::string& name : names) unsetenv(name.c_str());
}

}  // namespace apogee::tools::doctor
