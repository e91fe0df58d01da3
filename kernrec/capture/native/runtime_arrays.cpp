// The CUDA runtime API: arrays, textures and surfaces.
#include <algorithm>
#include <cstring>

#include "runtime.h"

using namespace capture;

namespace {

char* place(const Array* array, size_t x_bytes, size_t y) {
    return static_cast<char*>(array->memory) + y * array->width * array->texel() + x_bytes;
}

}  // namespace

API Channels cudaCreateChannelDesc(int x, int y, int z, int w, int kind) { return {x, y, z, w, kind}; }
API int cudaMalloc3DArray(Array** array, const Channels* channels, Volume extent, unsigned flags) {
    *array = new_array(extent.width, extent.height, extent.depth, &channels->x, channels->kind, flags);
    return done(*array ? kSuccess : kOutOfMemory);
}
API int cudaMallocArray(Array** array, const Channels* channels, size_t width, size_t height, unsigned flags) {
    return cudaMalloc3DArray(array, channels, {width, height, 0}, flags);
}
API int cudaFreeArray(Array* array) { return free_array(array), kSuccess; }
API int cudaArrayGetInfo(Channels* channels, Volume* extent, unsigned* flags, const Array* array) {
    if (channels) memcpy(channels, array->bits, sizeof array->bits), channels->kind = array->kind;
    if (extent) *extent = {array->width, array->height, array->depth};
    if (flags) *flags = array->flags;
    return kSuccess;
}
API int cudaGetChannelDesc(Channels* channels, const Array* array) {
    return cudaArrayGetInfo(channels, nullptr, nullptr, array);
}
API int cudaMemcpyToArray(Array* array, size_t x, size_t y, const void* from, size_t bytes, int) {
    return done(copy(place(array, x, y), from, bytes));
}
API int cudaMemcpyFromArray(void* to, const Array* array, size_t x, size_t y, size_t bytes, int) {
    return done(copy(to, place(array, x, y), bytes));
}
API int cudaMemcpy2DToArray(Array* array, size_t x, size_t y, const void* from, size_t pitch, size_t bytes, size_t rows,
                            int) {
    return done(copy_rows(place(array, x, y), array->width * array->texel(), from, pitch, bytes, rows));
}
API int cudaMemcpy2DFromArray(void* to, size_t pitch, const Array* array, size_t x, size_t y, size_t bytes, size_t rows,
                              int) {
    return done(copy_rows(to, pitch, place(array, x, y), array->width * array->texel(), bytes, rows));
}
namespace {
struct Resource {
    int type, unused;
    union {
        Array* array;
        struct {
            void* pointer;
            Channels channels;
            size_t width, height, pitch;  // For linear memory, only the size in bytes is known.
        } linear;
        char bytes[64];
    };
};
struct Texture {
    int address[3], filter, read, srgb;
    float border[4];
    int normalized;
};
int new_object(uint64_t* object, const Resource& from, const Sampler& sampler) {
    if (from.type == 0) return *object = new_image(*from.array, 0, sampler), done(*object ? kSuccess : kNotSupported);
    if (from.type != 2 && from.type != 3) return done(kNotSupported);
    Array view;
    view.memory = from.linear.pointer, view.kind = from.linear.channels.kind;
    memcpy(view.bits, &from.linear.channels.x, sizeof view.bits);
    view.width = from.type == 3 ? from.linear.width : from.linear.width / std::max<size_t>(view.texel(), 1);
    view.height = from.type == 3 ? from.linear.height : 0;
    *object = new_image(view, from.type == 3 ? from.linear.pitch : 0, sampler);
    return done(*object ? kSuccess : kNotSupported);
}
}  // namespace
API int cudaCreateTextureObject(uint64_t* object, const Resource* from, const Texture* texture, const void*) {
    return new_object(object, *from, {texture->address[0], texture->filter, texture->read == 1, texture->normalized});
}
API int cudaDestroyTextureObject(uint64_t object) { return free_image(object), kSuccess; }
API int cudaCreateSurfaceObject(uint64_t* object, const Resource* from) { return new_object(object, *from, {}); }
