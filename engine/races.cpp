#include "races.h"

#include <algorithm>

#include "batch.h"

namespace kernrec {

namespace {

constexpr int16_t kNobody = -1, kSeveral = -2;

bool others(int16_t last, int16_t warp) { return last != kNobody && last != warp; }

}  // namespace

RaceDetector::RaceDetector(uint32_t shared_bytes, uint32_t blocks, uint32_t warps_per_block)
    : stride_((shared_bytes + 15) / 16 * 16),
      warps_per_block_(warps_per_block),
      writer_(size_t(stride_) * blocks, kNobody),
      reader_(size_t(stride_) * blocks, kNobody) {}

void RaceDetector::start_batch(const std::vector<int64_t>& block_numbers) {
    block_numbers_ = block_numbers;
    std::fill(writer_.begin(), writer_.end(), kNobody);
    std::fill(reader_.begin(), reader_.end(), kNobody);
}

void RaceDetector::pass_barrier(uint32_t block) {
    std::fill_n(writer_.begin() + size_t(block) * stride_, stride_, kNobody);
    std::fill_n(reader_.begin() + size_t(block) * stride_, stride_, kNobody);
}

void RaceDetector::record(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree) {
    // Check against what was before this access, then enter it: lanes of one access do not race with themselves.
    bool several_before = false;
    for (const Resolved& at : all) {
        if (at.space != Space::kShared) continue;
        const size_t base = size_t(at.warp / warps_per_block_) * stride_;
        const int16_t warp = int16_t(at.warp);
        for (uint32_t rest = at.mask; rest; rest &= rest - 1) {
            const size_t place = base + at.addresses[__builtin_ctz(rest)];
            for (uint32_t k = 0; k < bytes; k++) {
                if (write && writer_[place + k] == kSeveral) {
                    several_before = true;
                    continue;
                }
                if (others(writer_[place + k], warp) || (write && others(reader_[place + k], warp)))
                    fail(source, all, bytes, write);
            }
        }
    }
    if (!write) {
        for (const Resolved& at : all) {
            if (at.space != Space::kShared) continue;
            const size_t base = size_t(at.warp / warps_per_block_) * stride_;
            for (uint32_t rest = at.mask; rest; rest &= rest - 1) {
                const size_t place = base + at.addresses[__builtin_ctz(rest)];
                for (uint32_t k = 0; k < bytes; k++) {
                    int16_t& reader = reader_[place + k];
                    reader = others(reader, int16_t(at.warp)) ? kSeveral : int16_t(at.warp);
                }
            }
        }
        return;
    }
    if (several_before) {  // a place that several warps wrote alike takes no single writer
        std::map<size_t, int16_t> here;
        for (const Resolved& at : all) {
            if (at.space != Space::kShared) continue;
            const size_t base = size_t(at.warp / warps_per_block_) * stride_;
            for (uint32_t rest = at.mask; rest; rest &= rest - 1)
                for (uint32_t k = 0; k < bytes; k++) {
                    const size_t place = base + at.addresses[__builtin_ctz(rest)] + k;
                    if (writer_[place] != kSeveral) continue;
                    auto [entry, is_new] = here.emplace(place, int16_t(at.warp));
                    if (!is_new && entry->second != int16_t(at.warp)) entry->second = kSeveral;
                }
        }
        for (const auto& [place, warp] : here)
            if (warp != kSeveral || !agree) fail(source, all, bytes, write);
    }
    for (const Resolved& at : all) {
        if (at.space != Space::kShared) continue;
        const size_t base = size_t(at.warp / warps_per_block_) * stride_;
        const int16_t warp = int16_t(at.warp);
        for (uint32_t rest = at.mask; rest; rest &= rest - 1) {
            const size_t place = base + at.addresses[__builtin_ctz(rest)];
            for (uint32_t k = 0; k < bytes; k++) {
                int16_t& writer = writer_[place + k];
                if (!others(writer, warp)) {
                    writer = warp;
                } else {
                    if (!agree) fail(source, all, bytes, write, true);
                    writer = kSeveral;
                }
            }
        }
    }
}

void RaceDetector::fail(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool among_itself) {
    struct Touch {
        size_t place;
        int16_t warp;
    };
    std::vector<Touch> touches;
    for (const Resolved& at : all)
        if (at.space == Space::kShared)
            for (uint32_t lane = 0; lane < kWarp; lane++)
                if (at.mask >> lane & 1)
                    for (uint32_t k = 0; k < bytes; k++)
                        touches.push_back({size_t(at.warp / warps_per_block_) * stride_ + at.addresses[lane] + k,
                                           int16_t(at.warp)});
    auto clashes = [&](const Touch& touch) {
        return others(writer_[touch.place], touch.warp) || (write && others(reader_[touch.place], touch.warp));
    };
    auto first = among_itself ? touches.end() : std::find_if(touches.begin(), touches.end(), clashes);
    if (first == touches.end()) {  // two warps of this access write the same byte
        for (const Touch& touch : touches) writer_[touch.place] = touch.warp;
        first = std::find_if(touches.begin(), touches.end(),
                             [&](const Touch& touch) { return writer_[touch.place] != touch.warp; });
    }
    const int16_t last = writer_[first->place];
    const bool wrote = last != kNobody && last != first->warp;
    const int16_t other = wrote ? last : reader_[first->place];
    const std::string who =
        other == kSeveral ? "several warps" : "warp " + std::to_string(other % int(warps_per_block_));
    const int64_t block = block_numbers_[first->warp / warps_per_block_];
    throw Fault(FaultKind::kEmulation, source,
                "race: warp " + std::to_string(first->warp % int(warps_per_block_)) + " of block number " +
                    std::to_string(block) + (write ? " writes" : " reads") + " byte " +
                    std::to_string(first->place % stride_) + " of shared memory, which " + who +
                    (wrote ? " wrote" : " read") + " with no barrier between");
}

}  // namespace kernrec
