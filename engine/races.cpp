#include "races.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "batch.h"
#include "text.h"

namespace kernrec {

namespace {

constexpr uint32_t kBarrierBytes = 8;
constexpr int32_t kUnderWay = INT32_MAX;  // later than any known time

template <class... Parts>
[[noreturn]] void fail(uint32_t source, const Parts&... parts) {
    throw Fault(FaultKind::kEmulation, source, joined(parts...));
}

}  // namespace

Readers::Readers(size_t places, uint32_t warps_per_cluster)
    : places_(places),
      warps_(warps_per_cluster),
      // Zero pages take no memory until they are touched.
      times_(static_cast<int32_t*>(std::calloc(places * warps_per_cluster + 1, sizeof(int32_t)))) {
    if (!times_) throw std::bad_alloc();
}

uint32_t Readers::unordered_among_all(const Observer& observer, size_t place) const {
    const uint32_t first = observer.warp / warps_ * warps_;
    uint32_t other = kNobody;
    for (uint32_t warp = first; warp < first + warps_; warp++)
        if (!observer.is_after({warp, times(warp)[place]})) other = other == kNobody ? warp : kSeveral;
    return other;
}

void RaceDetector::start_batch(const std::vector<int64_t>& block_numbers) {
    block_numbers_ = block_numbers;
    clocks.start_batch();
    writes_.assign(size_, {});
    agreed_.clear();
    reads_.start_batch();
    async_reads_.start_batch();
    reading_.assign(size_ / kPiece, 0);
    stored_.assign(size_ / kPiece, 0);
    ended_.assign(blocks_, false);
    reached_.clear();
}

// --- Order between warps ---

Observer RaceDetector::observer(uint32_t warp) const {
    const int32_t* seen = clocks.row(warp);
    const int32_t* cluster = seen + warp / warps_per_cluster_ * warps_per_cluster_;
    return {warp, seen, *std::min_element(cluster, cluster + warps_per_cluster_)};
}

template <class Change>
void RaceDetector::change_stores(uint32_t block, Change change) {
    const auto first = stored_.begin() + size_t(block) * (stride_ / kPiece);
    std::transform(first, first + stride_ / kPiece, first, change);
}

void RaceDetector::make_stores_old(uint32_t block) {
    change_stores(block, [](int16_t by) { return by > 0 ? int16_t(-1) : by; });
}

void RaceDetector::fence(uint32_t warp) {
    change_stores(warp / warps_per_block_, [=](int16_t by) { return by < 0 || by == int(warp + 1) ? int16_t(0) : by; });
}

void RaceDetector::pass_barrier(uint32_t first_block, uint32_t blocks) {
    std::vector<uint32_t> warps(blocks * warps_per_block_);
    std::iota(warps.begin(), warps.end(), first_block * warps_per_block_);
    clocks.join(warps);
    for (uint32_t block = first_block; block < first_block + blocks; block++) make_stores_old(block);
}

void RaceDetector::pass_some(uint32_t block, uint32_t number, const std::vector<uint32_t>& warps) {
    clocks.join(warps, reached_[{block, number}]);
    reached_.erase({block, number});
    make_stores_old(block);
}

void RaceDetector::use_barriers(uint32_t source, const std::vector<LanePlace>& uses, bool changes) {
    for (const bool checks : {true, false})
        for (const auto& [lane, at] : uses) {
            const size_t place = size_t(at.block) * stride_ + at.byte;
            const Observer by = observer(lane / kWarp);
            if (checks) check(source, by, {place, place + kBarrierBytes}, changes);
            else if (changes) write({place, place + kBarrierBytes}, by.access());
        }
}

void RaceDetector::release(uint32_t warp, size_t place) {
    // A block that contains a barrier must not end before other blocks' arrivals at the barrier.
    for (size_t byte = place; byte < place + kBarrierBytes && place / stride_ != warp / warps_per_block_; byte++)
        reads_.add(observer(warp), byte);
    clocks.release(warp, place);
}

void RaceDetector::acquire(uint32_t warp, size_t place) {
    clocks.acquire(warp, place);
    make_stores_old(warp / warps_per_block_);
}

// --- Accesses by threads ---

// Report an access that is not ordered after the earlier writers, or after each earlier reader.
void RaceDetector::check(uint32_t source, const Observer& observer, Span span, bool write) const {
    for (size_t place = span.first; place < span.end; place++)
        if (!observer.is_after(writes_[place])) fail_at(source, observer.warp, place, writes_[place].by, write, true);
    if (!write) return;
    for (auto other = agreed_.lower_bound(span.first); other != agreed_.end() && other->first < span.end; ++other)
        if (!observer.is_after(other->second))
            fail_at(source, observer.warp, other->first, other->second.by, write, true);
    for (size_t place = span.first; place < span.end; place++)
        if (const uint32_t reader = reads_.unordered(observer, place); reader != Readers::kNobody)
            fail_at(source, observer.warp, place, reader, write, false);
    for (size_t place = span.first; place < span.end; place = (place / kPiece + 1) * kPiece)
        if (const uint32_t reader = async_reads_.unordered(observer, place / kPiece); reader != Readers::kNobody)
            fail_at(source, observer.warp, place, reader, write, false);
}

void RaceDetector::write(Span span, Access access) {
    if (!agreed_.empty()) agreed_.erase(agreed_.lower_bound(span.first), agreed_.lower_bound(span.end));
    for (size_t place = span.first; place < span.end; place++) {
        writes_[place] = access;
        reads_.clear(place);
    }
}

void RaceDetector::record(uint32_t source, const std::vector<Resolved>& all, uint32_t bytes, bool write, bool agree,
                          bool is_copy) {
    const auto each = [&](auto visit) {
        for (const Resolved& at : all) {
            if (at.space != Space::kShared) continue;
            const Observer by = observer(at.warp);
            for (const uint32_t bit : LanesOf(at.mask)) {
                const auto place = size_t(at.addresses[bit]);
                visit(by, Span{place, place + bytes});
            }
        }
    };
    each([&](const Observer& by, Span span) {
        if (write) check_async_readers(source, span.first / kPiece);
        check(source, by, span, write);
        for (size_t place = span.first; place < span.end && !write; place++) reads_.add(by, place);
    });
    if (!write) return;
    // Lanes of one access do not race with each other if they agree. They share either all bytes or none.
    std::vector<std::pair<size_t, Access>> agreed;
    each([&](const Observer& by, Span span) {
        const Access other = writes_[span.first];
        if (!by.is_after(other)) {
            if (!agree) fail_at(source, by.warp, span.first, other.by, true, true);
            for (size_t place = span.first; place < span.end; place++) agreed.push_back({place, other});
        }
        this->write(span, by.access());
        if (!is_copy) stored_[span.first / kPiece] = int16_t(by.warp + 1);
    });
    agreed_.insert(agreed.begin(), agreed.end());
}

// --- Asynchronous accesses ---

void RaceDetector::check_async_readers(uint32_t source, size_t piece) const {
    if (reading_[piece])
        fail(source, "writes shared memory that an unfinished operation reads; wait for the operation first");
}

AsyncRead RaceDetector::begin_read(uint32_t source, Pieces pieces, std::vector<uint32_t> warps) {
    std::sort(pieces.begin(), pieces.end());
    pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
    for (const uint32_t warp : warps) {
        const Observer by = observer(warp);
        for (const size_t piece : pieces) check(source, by, {piece * kPiece, (piece + 1) * kPiece}, false);
    }
    for (const uint32_t piece : pieces)
        if (stored_[piece])
            fail(source, "reads shared memory that threads stored to with no fence.proxy.async in between");
    for (const uint32_t piece : pieces) reading_[piece]++;
    return {std::move(pieces), std::move(warps)};
}

void RaceDetector::end_read(const AsyncRead& read, const Knowledge* arrival) {
    for (const uint32_t piece : read.pieces) reading_[piece]--;
    for (const uint32_t warp : read.warps) {
        const Observer by = arrival ? Observer{warp, arrival->data(), 0} : observer(warp);
        for (const uint32_t piece : read.pieces) async_reads_.add(by, piece);
    }
}

void RaceDetector::begin_write(uint32_t source, uint32_t warp, Span span, size_t barrier) {
    for (const uint32_t piece : pieces_of(span)) check_async_readers(source, piece);
    check(source, observer(warp), span, true);
    write(span, {clocks.column(barrier), kUnderWay});
}

void RaceDetector::end_write(Span span, size_t barrier) {
    for (size_t place = span.first; place < span.end; place++) writes_[place].time = clocks.now(barrier);
    for (const uint32_t piece : pieces_of(span)) stored_[piece] = 0;
}

Pieces RaceDetector::pieces_of(Span span) {
    Pieces pieces;
    for (size_t piece = span.first / kPiece; piece * kPiece < span.end; piece++) pieces.push_back(uint32_t(piece));
    return pieces;
}

// --- Ends of blocks, and messages ---

void RaceDetector::end_block(uint32_t source, uint32_t block) {
    const size_t first = size_t(block) * stride_, end = first + stride_;
    const uint32_t first_warp = block * warps_per_block_ / warps_per_cluster_ * warps_per_cluster_;
    Knowledge seen;
    for (uint32_t warp = block * warps_per_block_; warp < (block + 1) * warps_per_block_; warp++)
        learn(seen, Knowledge(clocks.row(warp), clocks.row(warp) + clocks.columns()));
    for (size_t place = first; place < end; place++)
        if (writes_[place].time > seen[writes_[place].by]) fail_ended(source, place, writes_[place].by);
    for (uint32_t warp = first_warp; warp < first_warp + warps_per_cluster_; warp++)
        for (size_t place = first; place < end; place++)
            if (std::max(reads_.times(warp)[place], async_reads_.times(warp)[place / kPiece]) > seen[warp])
                fail_ended(source, place, warp);
    for (size_t place = first; place < end; place++) writes_[place].time = kUnderWay;
    ended_[block] = true;
}

std::string RaceDetector::warp_text(uint32_t warp) const {
    return joined("warp ", warp % warps_per_block_, " of block number ", block_numbers_[warp / warps_per_block_]);
}

void RaceDetector::fail_at(uint32_t source, uint32_t warp, size_t place, uint32_t other, bool write,
                           bool other_wrote) const {
    const size_t block = place / stride_;
    const std::string of_block = cluster_blocks_ > 1 ? joined(" of the cluster's block ", block % cluster_blocks_) : "";
    const std::string head = joined("race: ", warp_text(warp), write ? " writes" : " reads", " byte ", place % stride_,
                                    " of shared memory", of_block, ", which ");
    const bool is_several = other == Readers::kSeveral;
    if (ended_[block]) fail(source, head, "is gone: that block has ended");
    if (other >= clocks.warps && !is_several)
        fail(source, head, "a copy in bulk writes; its barrier, at byte ", clocks.place_of(other) % stride_,
             ", was not waited for");
    fail(source, head, is_several ? "several warps" : joined("warp ", other % warps_per_block_),
         other_wrote ? " wrote" : " read", " with no barrier between");
}

void RaceDetector::fail_ended(uint32_t source, size_t place, uint32_t user) const {
    fail(source, "race: block number ", block_numbers_[place / stride_], " ends while ",
         user < clocks.warps ? warp_text(user) : "a copy in bulk", " may still use byte ", place % stride_,
         " of its shared memory; a barrier of the cluster's ", cluster_blocks_, " blocks must come first");
}

}  // namespace kernrec
