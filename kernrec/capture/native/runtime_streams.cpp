// The CUDA runtime API: streams, captured streams and events.
#include <cstring>

#include "runtime.h"

using namespace capture;

API int cudaStreamCreateWithFlags(void** stream, unsigned flags) {
    Stream* made = new Stream;
    made->flags = flags;
    return *stream = made, kSuccess;
}
API int cudaStreamCreate(void** stream) { return cudaStreamCreateWithFlags(stream, 0); }
API int cudaStreamDestroy(void* stream) {
    if (stream_of(stream) == stream) delete static_cast<Stream*>(stream);
    return kSuccess;
}
API int cudaStreamGetFlags(void* stream, unsigned* flags) { return *flags = stream_of(stream)->flags, kSuccess; }
API int cudaStreamGetPriority(void*, int* priority) { return *priority = 0, kSuccess; }
API int cudaStreamGetDevice(void*, int* device) { return *device = 0, kSuccess; }
API int cudaStreamGetId(void* stream, unsigned long long* id) {
    return *id = reinterpret_cast<uint64_t>(stream), kSuccess;
}
API int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
    const auto& graph = static_cast<Event*>(event)->captured;
    // The stream joins the capture that recorded the event.
    if (graph && !graph->ended) stream_of(stream)->captured = graph;
    return kSuccess;
}
API int cudaEventCreate(void** event) { return *event = new Event, kSuccess; }
API int cudaEventDestroy(void*) { return kSuccess; }  // Keep the event, because graphs may still record it.
API int cudaEventRecord(void* handle, void* stream) {
    Event* event = static_cast<Event*>(handle);
    if (!event) return done(kInvalidHandle);
    event->captured = stream_of(stream)->captured;
    return done(submit(stream, kRecordNode, [event] { return record(*event); }));
}
API int cudaEventElapsedTime(float* milliseconds, void* first, void* second) {
    return done(elapsed(milliseconds, first, second));
}

// Captured streams.

API int cudaStreamBeginCapture(void* stream, int) {
    if (stream_of(stream)->capturing()) return done(kInvalidValue);
    return stream_of(stream)->captured = std::make_shared<Graph>(), kSuccess;
}
API int cudaStreamEndCapture(void* stream, void** graph) {
    if (!stream_of(stream)->capturing()) return done(kInvalidValue);
    stream_of(stream)->captured->ended = true;
    *graph = handle_of(std::move(stream_of(stream)->captured));
    return stream_of(stream)->captured = nullptr, kSuccess;
}
API int cudaStreamIsCapturing(void* stream, int* status) { return *status = stream_of(stream)->capturing(), kSuccess; }
API int cudaStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                                    void* const** before, size_t* count) {
    static thread_local void* last;
    const auto& captured = stream_of(stream)->captured;
    *status = stream_of(stream)->capturing();
    if (id) *id = reinterpret_cast<uint64_t>(captured.get());
    if (graph) *graph = *status ? handle_of(captured) : nullptr;
    last = *status && !captured->nodes.empty() ? captured->nodes.back().get() : nullptr;
    if (before) *before = &last;
    if (count) *count = last != nullptr;
    return kSuccess;
}
API int cudaStreamGetCaptureInfo_v3(void* stream, int* status, unsigned long long* id, void** graph,
                                    void* const** before, const void** edges, size_t* count) {
    if (edges) *edges = nullptr;
    return cudaStreamGetCaptureInfo_v2(stream, status, id, graph, before, count);
}
#if RUNTIME_MAJOR == 12
API int cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id) {
    return cudaStreamGetCaptureInfo_v2(stream, status, id, nullptr, nullptr, nullptr);
}
#else
API int cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id, void** graph, void* const** before,
                                 const void** edges, size_t* count) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, before, edges, count);
}
#endif
// Nodes run in the order of the calls that created them.
API int cudaStreamUpdateCaptureDependencies(...) { return kSuccess; }
