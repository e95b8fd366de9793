// SPDX-License-Identifier: Apache-2.0

// The picture of the experts' loads: its shares and steps, also when steps share columns.
#include "apogee/driver/records/expert_picture.h"

#include <gmock/gmock.h>

namespace apogee::driver {
namespace expert_picture_test {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ExpertPictureTest, HasACellPerExpertAndStep) {
  ExpertPicture picture({2, 1});
  EXPECT_EQ(picture.Draw(0), "");
  picture.Add({0.5, 1.5, 1});
  picture.Add({2, 0, 1});
  const std::string svg = picture.Draw(/*last_step=*/7);
  EXPECT_THAT(svg, HasSubstr("expert 0, step 6: 0.50"));
  EXPECT_THAT(svg, HasSubstr("expert 1, step 6: 1.50"));
  EXPECT_THAT(svg, HasSubstr("expert 0, step 7: 2.00"));
  EXPECT_THAT(svg, HasSubstr(">step 6<"));
  EXPECT_THAT(svg, HasSubstr("layer 1"));
}

// So many experts have eight columns: 19 steps make five, of four steps each but the last.
TEST(ExpertPictureTest, ManyStepsShareColumns) {
  constexpr size_t kExperts = 10000;
  ExpertPicture picture({kExperts});
  for (int step = 1; step <= 19; ++step) {
    picture.Add(std::vector<double>(kExperts, 0.1 * step));
  }
  const std::string svg = picture.Draw(/*last_step=*/19);
  EXPECT_THAT(svg, HasSubstr("expert 0, step 4: 0.25"));
  EXPECT_THAT(svg, HasSubstr("expert 0, step 16: 1.45"));
  EXPECT_THAT(svg, HasSubstr("expert 9999, step 19: 1.80"));
  EXPECT_THAT(svg, Not(HasSubstr("step 5:")));
  EXPECT_THAT(svg, HasSubstr(">step 1<"));
}

}  // namespace expert_picture_test
}  // namespace apogee::driver
