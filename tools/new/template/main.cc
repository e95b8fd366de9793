// my_app [PLUGIN] [RANKS] [STEPS]: trains the model of own_model.h on ranks that are threads.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "train.h"

int main(int argc, char** argv) try {
  app::TrainOptions options;
  int ranks = 1;
  if (argc > 1) options.plugin = argv[1];
  if (argc > 2) ranks = std::atoi(argv[2]);
  if (argc > 3) options.steps = std::atoi(argv[3]);
  if (argc > 4 || ranks < 1 || options.steps < 1 || options.batch % ranks != 0) {
    std::fprintf(stderr, "usage: my_app [PLUGIN] [RANKS, a divisor of %d] [STEPS]\n",
                 static_cast<int>(options.batch));
    return 2;
  }
  apogee::OkOrThrow(apogee::comm::launch({.num_ranks = ranks}, [&](apogee::comm::World& world) {
    app::Train(world, options, [](int64_t step, double loss) {
      if (step % 50 == 0) std::printf("step %4d  loss %.6f\n", static_cast<int>(step), loss);
    });
  }));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "my_app: %s\n", error.what());
  return 1;
}
