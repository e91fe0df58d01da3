#include "phase_races.h"

#include <new>

#include "batch.h"

namespace kernrec {

namespace {

constexpr uint32_t kBarrierBytes = 8;
constexpr int32_t kUnderWay = INT32_MAX;  // later than any known time

}  // namespace

PhaseRaces::PhaseRaces(uint32_t shared_bytes, uint32_t blocks, uint32_t warps_per_block, uint32_t cluster_blocks)
    : RaceDetector(shared_bytes, blocks, warps_per_block),
      clocks(warps_per_block * blocks),
      cluster_blocks_(cluster_blocks),
      warps_per_cluster_(warps_per_block * cluster_blocks),
      blocks_(blocks),
      size_(size_t(stride_) * blocks) {}

void PhaseRaces::start_batch(const std::vector<int64_t>& block_numbers) {
    RaceDetector::start_batch(block_numbers);
    writer_.assign(size_, 0);
    written_.assign(size_, 0);
    // Zero pages take no memory until they are touched.
    read_.reset(static_cast<int32_t*>(std::calloc(size_ * warps_per_cluster_ + 1, sizeof(int32_t))));
    if (!read_) throw std::bad_alloc();
    tile_read_.assign(size_ / kPiece * warps_per_cluster_, 0);
    ended_.assign(blocks_, false);
    reached_.clear();
    clocks.start_batch();
}

void PhaseRaces::reach(uint32_t block, uint32_t number, uint32_t warp) {
    reached_[{block, number}].push_back(clocks.snapshot(warp));
}

void PhaseRaces::pass_some(uint32_t block, uint32_t number, const std::vector<uint32_t>& warps) {
    const auto entry = reached_.find({block, number});
    clocks.join(warps, entry == reached_.end() ? std::vector<Knowledge>() : entry->second);
    if (entry != reached_.end()) reached_.erase(entry);
    tensor_reads.pass_barrier(block);
}

void PhaseRaces::join(uint32_t first, uint32_t count) {
    std::vector<uint32_t> warps;
    for (uint32_t warp = first * warps_per_block_; warp < (first + count) * warps_per_block_; warp++)
        warps.push_back(warp);
    clocks.join(warps);
    for (uint32_t block = first; block < first + count; block++) tensor_reads.pass_barrier(block);
}

void PhaseRaces::release(uint32_t warp, size_t place) {
    // A block that contains a barrier must not end before other blocks' arrivals at the barrier.
    if (place / stride_ != warp / warps_per_block_)
        std::fill_n(read_of(warp) + place, kBarrierBytes, clocks.time(warp));
    clocks.release(warp, place);
}

void PhaseRaces::pass_phase(const std::vector<uint32_t>& blocks) {
    for (const uint32_t block : blocks) tensor_reads.pass_barrier(block);
}

void PhaseRaces::initialize(uint32_t source, const std::vector<Touch>& uses) {
    check(source, uses, kBarrierBytes, true);
    for (const Touch& use : uses) {
        std::fill_n(writer_.begin() + use.place, kBarrierBytes, use.warp);
        std::fill_n(written_.begin() + use.place, kBarrierBytes, clocks.time(use.warp));
    }
}

void PhaseRaces::use(uint32_t source, const std::vector<Touch>& uses) { check(source, uses, kBarrierBytes, false); }

void PhaseRaces::record(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree,
                        bool is_copy) {
    std::vector<Touch> touches;
    each_shared_lane(all, [&](uint32_t warp, size_t place) {
        if (write) tensor_reads.write(source, place, warp, is_copy);
        touches.push_back({warp, place});
    });
    if (touches.empty()) return;
    if (write && !agree) {  // two warps write the same byte
        std::vector<Touch> sorted = touches;
        std::stable_sort(sorted.begin(), sorted.end(),
                         [](const Touch& a, const Touch& b) { return a.place < b.place; });
        for (size_t i = 0; i + 1 < sorted.size(); i++) {
            const Touch &a = sorted[i], &b = sorted[i + 1];
            if (a.place == b.place && a.warp != b.warp && a.warp / warps_per_block_ == b.warp / warps_per_block_)
                fail_at(source, a.warp, a.place, b.warp, true, true);
        }
    }
    check(source, touches, bytes, write);
    for (const Touch& touch : touches) {
        const int32_t time = clocks.time(touch.warp);
        if (write) {
            std::fill_n(writer_.begin() + touch.place, bytes, touch.warp);
            std::fill_n(written_.begin() + touch.place, bytes, time);
        } else {
            std::fill_n(read_of(touch.warp) + touch.place, bytes, time);
        }
    }
}

TileRead PhaseRaces::begin_tile(uint32_t source, const std::vector<size_t>& places, std::vector<uint32_t> warps) {
    TileRead tile{tensor_reads.pieces_of(places), std::move(warps)};
    std::vector<Touch> touches;
    for (const uint32_t warp : tile.warps)
        for (const uint32_t piece : tile.pieces) touches.push_back({warp, size_t(piece) * kPiece});
    check(source, touches, kPiece, false);
    tensor_reads.begin(source, tile.pieces);
    return tile;
}

void PhaseRaces::end_tile(const TileRead& tile, const Knowledge* arrival) {
    tensor_reads.end(tile.pieces);
    for (const uint32_t warp : tile.warps) {
        int32_t* read = tile_read_of(warp);
        for (const uint32_t piece : tile.pieces)
            read[piece] = arrival ? std::max(read[piece], (*arrival)[warp]) : clocks.time(warp);
    }
}

void PhaseRaces::end_block(uint32_t source, uint32_t block) {
    const size_t first = size_t(block) * stride_, end = first + stride_;
    const uint32_t first_warp = block * warps_per_block_ / warps_per_cluster_ * warps_per_cluster_;
    Knowledge seen;
    for (uint32_t warp = block * warps_per_block_; warp < (block + 1) * warps_per_block_; warp++)
        learn(seen, Knowledge(clocks.row(warp), clocks.row(warp) + clocks.columns()));
    for (size_t place = first; place < end; place++)
        if (written_[place] > seen[writer_[place]]) fail_ended(source, place, -1);
    for (uint32_t warp = first_warp; warp < first_warp + warps_per_cluster_; warp++) {
        for (size_t place = first; place < end; place++)
            if (read_of(warp)[place] > seen[warp]) fail_ended(source, place, warp);
        for (size_t piece = first / kPiece; piece < end / kPiece; piece++)
            if (tile_read_of(warp)[piece] > seen[warp]) fail_ended(source, piece * kPiece, warp);
    }
    std::fill(written_.begin() + int64_t(first), written_.begin() + int64_t(end), kUnderWay);
    ended_[block] = true;
}

void PhaseRaces::begin_write(uint32_t source, uint32_t warp, Span span, size_t barrier) {
    for (const uint32_t piece : TensorReads::pieces_of(span.first, span.end))
        tensor_reads.write(source, size_t(piece) * kPiece, warp, true);
    check(source, {{warp, span.first}}, span.end - span.first, true);
    std::fill(writer_.begin() + int64_t(span.first), writer_.begin() + int64_t(span.end), clocks.column(barrier));
    std::fill(written_.begin() + int64_t(span.first), written_.begin() + int64_t(span.end), kUnderWay);
}

void PhaseRaces::end_write(Span span, size_t barrier) {
    std::fill(written_.begin() + int64_t(span.first), written_.begin() + int64_t(span.end), clocks.now(barrier));
    tensor_reads.fill(span.first, span.end);
}

Pieces PhaseRaces::begin_read(uint32_t source, uint32_t warp, Span span) {
    check(source, {{warp, span.first}}, span.end - span.first, false);
    const Pieces pieces = TensorReads::pieces_of(span.first, span.end);
    tensor_reads.begin(source, pieces);
    return pieces;
}

void PhaseRaces::end_read(uint32_t warp, Span span, const Pieces& pieces) {
    tensor_reads.end(pieces);
    std::fill(read_of(warp) + span.first, read_of(warp) + span.end, clocks.time(warp));
}

// Report an access that is not ordered after the earlier writers, or after each earlier reader.
void PhaseRaces::check(uint32_t source, const std::vector<Touch>& touches, size_t bytes, bool write) {
    for (const Touch& touch : touches) {
        const int32_t* seen = clocks.row(touch.warp);
        for (size_t place = touch.place; place < touch.place + bytes; place++)
            if (written_[place] > seen[writer_[place]]) fail_at(source, touch.warp, place, writer_[place], write, true);
    }
    if (!write) return;
    for (uint32_t reader = 0; reader < warps_per_cluster_; reader++) {
        const int32_t* read = read_.get() + reader * size_;
        const int32_t* tile_read = tile_read_.data() + reader * (size_ / kPiece);
        for (const Touch& touch : touches) {
            const uint32_t other = touch.warp - touch.warp % warps_per_cluster_ + reader;
            const int32_t seen = clocks.seen(touch.warp, other);
            for (size_t place = touch.place; place < touch.place + bytes; place++)
                if (read[place] > seen || tile_read[place / kPiece] > seen)
                    fail_at(source, touch.warp, place, other, write, false);
        }
    }
}

void PhaseRaces::fail_at(uint32_t source, uint32_t warp, size_t place, uint32_t other, bool write, bool other_wrote) {
    const std::string of_block =
        cluster_blocks_ > 1 ? " of the cluster's block " + std::to_string(place / stride_ % cluster_blocks_) : "";
    const std::string head = access_text(warp, write, place) + of_block + ", which";
    if (ended_[place / stride_]) throw Fault(FaultKind::kEmulation, source, head + " is gone: that block has ended");
    if (other >= clocks.warps)
        throw Fault(FaultKind::kEmulation, source,
                    head + " a copy in bulk writes; its barrier, at byte " +
                        std::to_string(clocks.place_of(other) % stride_) + ", was not waited for");
    throw Fault(FaultKind::kEmulation, source,
                head + " warp " + std::to_string(other % warps_per_block_) + (other_wrote ? " wrote" : " read") +
                    " with no barrier between");
}

void PhaseRaces::fail_ended(uint32_t source, size_t place, int64_t reader) {
    const uint32_t user = reader < 0 ? writer_[place] : uint32_t(reader);
    const std::string who = user < clocks.warps ? warp_text(user) : "a copy in bulk";
    throw Fault(FaultKind::kEmulation, source,
                "race: block number " + std::to_string(block_numbers_[place / stride_]) + " ends while " + who +
                    " may still use byte " + std::to_string(place % stride_) +
                    " of its shared memory; a barrier of the cluster's " + std::to_string(cluster_blocks_) +
                    " blocks must come first");
}

}  // namespace kernrec
