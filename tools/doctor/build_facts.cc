// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/doctor/build_facts.h"

#include <cctype>

#include "apogee/comm/mpi/library.h"
#include "apogee/tools/doctor/environment.h"
#include "apogee_doctor_facts.h"
#include "apogee_doctor_revision.h"

namespace apogee::tools::doctor {
namespace {

// The instruction sets that matter for speed and that the compiler was allowed to use.
std::string BuiltFor() {
  std::string sets;
#ifdef __AVX2__
  sets += " avx2";
#endif
#ifdef __FMA__
  sets += " fma";
#endif
#ifdef __AVX512F__
  sets += " avx512f";
#endif
#ifdef __AVX512VBMI__
  sets += " avx512vbmi";
#endif
#ifdef __AVX512BF16__
  sets += " avx512bf16";
#endif
#ifdef __AMX_BF16__
  sets += " amx-bf16";
#endif
#ifdef __ARM_FEATURE_SVE
  sets += " sve";
#endif
  return sets.empty() ? " the baseline of this kind of processor" : sets;
}

void AddMpi(const Launcher& launcher, Report& report) {
  const auto library = comm::mpi::Library();
  if (!library) {
    report.Add("MPI", "not built");
    report.Advise(
        "this build has no MPI, so ranks are threads of one process: scripts/install_deps.sh "
        "mpi, then configure and build again");
  } else {
    const MpiVersion linked = ParseMpi(library->linked);
    report.Add("MPI", "built with " + library->headers + ", linked with " + linked.ToString());
    const MpiVersion headers = ParseMpi(library->headers);
    if (!headers.family.empty() && headers.version != linked.version) {
      report.Advise("the program was built with " + library->headers + " and runs with " +
                    linked.ToString() +
                    ": build again, or put the library it was built with first "
                    "on LD_LIBRARY_PATH");
    }
    const bool fits = Fits(launcher.version, linked);
    if (fits && launcher.version.family == linked.family && !launcher.version.version.empty() &&
        launcher.version.version != linked.version) {
      report.Advise("mpirun is of " + launcher.version.ToString() + " and the library " +
                    linked.ToString() + ": put the mpirun of the same installation first on PATH");
    }
  }
  if (launcher.path.empty()) {
    report.Add("mpirun", "not on PATH");
  } else {
    report.Add("mpirun", launcher.path + ", " + launcher.version.ToString() +
                             (launcher.problem.empty() ? "" : " (" + launcher.problem + ")"));
  }
}

}  // namespace

void AddBuild(const Launcher& launcher, Report& report) {
  report.Begin("build");
  report.Add("apogee", std::string(facts::kVersion) + ", revision " + APOGEE_DOCTOR_REVISION);
  std::string type = facts::kBuildType;
  if (*facts::kSanitize != '\0') type += std::string(", sanitizers ") + facts::kSanitize;
  report.Add("build type", type);
  report.Add("compiler", facts::kCompiler);
  report.Add("instruction sets", std::string("APOGEE_NATIVE=") + facts::kNative + ":" + BuiltFor());
  report.Add("OpenMP", facts::kOpenMp);
  report.Add("oneDNN", facts::kOneDnn);
  report.Add("utf8proc", facts::kUtf8proc);
  report.Add("SentencePiece", facts::kSentencePiece);
  report.Add("Eigen", facts::kEigen);
  report.Add("Abseil", facts::kAbseil);
  report.Add("CUDA", "not built");
  report.Add("NCCL", "not built");
  AddMpi(launcher, report);
  const auto started = StartedBy();
  report.Add("started by", !started ? "nothing: alone"
                                    : started->by + ", process " + std::to_string(started->rank) +
                                          " of " + std::to_string(started->size));
  if (std::string(facts::kBuildType) == "Debug") {
    report.Advise("this is a Debug build, many times slower: cmake --preset release");
  }
}

}  // namespace apogee::tools::doctor
