package dputest_test

import (
	"context"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/dpu/dputest"
)

func createMutants() map[string]mutant {
	return map[string]mutant{
		"no device name":                  {"Block/Create", reply(func(c *createReply) { c.DeviceName = "" })},
		"no device name to be seen":       {"Block/Create", secretive},
		"one name for all":                {"Block/Create Block/VolumesAtOnce Block/Delete", reply(func(c *createReply) { c.DeviceName = "nvme0n1" })},
		"repeat makes another":            {"Block/Repeat Block/InterruptedCalls Block/SameVolumeAtOnce", creating(renamed)},
		"repeat is refused":               {"Block/Repeat Filesystem/DefaultVolumeMode", creating(refusing(codes.FailedPrecondition, always))},
		"repeat is ALREADY_EXISTS":        {"Block/Repeat", creating(refusing(codes.AlreadyExists, always))},
		"contexts must be equal":          {"Block/RepeatWithOtherContexts", creating(refusing(codes.FailedPrecondition, otherContexts))},
		"contexts are the identity":       {"Block/RepeatWithOtherContexts", creating(renamedIf(otherContexts))},
		"no mode is Block":                {"Block/DefaultVolumeMode Filesystem/DefaultVolumeMode", request(func(_ *reference, q *createRequest) { q.VolumeMode = or(q.VolumeMode, "Block") })},
		"no mode is a mode of its own":    {"Filesystem/DefaultVolumeMode", creating(refusing(codes.FailedPrecondition, otherText))},
		"other access modes will do":      {"Block/OtherAccessModes", creating(adopting(otherModes))},
		"more access modes will do":       {"Block/OtherAccessModes", creating(adopting(moreModes))},
		"no access modes will do":         {"Block/OtherAccessModes", creating(adopting(noModes))},
		"policies must be equal":          {"Block/RepeatWithOtherContexts", creating(refusing(codes.FailedPrecondition, otherPolicy))},
		"attributes must be equal":        {"Block/RepeatWithOtherContexts", creating(refusing(codes.FailedPrecondition, otherAttributes))},
		"makes what it does not announce": {"Block/BadRequests", oneKind},
		"other access modes win":          {"Block/OtherAccessModes", creating(overwriting(otherModes))},
		"other modes: ALREADY_EXISTS":     {"Block/OtherAccessModes", creating(refusing(codes.AlreadyExists, otherModes))},
		"other volume mode will do":       {"Block/OtherVolumeMode Filesystem/OtherVolumeMode", creating(adopting(otherMode))},
		"other mode: INVALID_ARGUMENT":    {"Block/OtherVolumeMode", creating(refusing(codes.InvalidArgument, otherMode))},
		"conflict loses the device":       {"Block/OtherVolumeMode", creating(losing(otherMode))},
		"bad input: INVALID_ARGUMENT":     {"Block/BadRequests", recode[createRequest](codes.FailedPrecondition, codes.InvalidArgument)},
		"any volume_id":                   {"Block/BadRequests", creating(anonymous)},
		"any volume_mode":                 {"Block/BadRequests", request(func(_ *reference, q *createRequest) { q.VolumeMode = known(q.VolumeMode) })},
		"bad modes: OUT_OF_RANGE":         {"Block/BadRequests", creating(oddModes)},
		"refused but kept":                {"Block/BadRequests Block/Unusable", creating(keptWhenRefused)},
		"unusable: INTERNAL":              {"Block/Unusable", recode[createRequest](codes.FailedPrecondition, codes.Internal)},
		"unusable: UNAVAILABLE":           {"Block/Unusable", recode[createRequest](codes.FailedPrecondition, codes.Unavailable)},
		"unusable is made all the same":   {"Block/Unusable", request(func(_ *reference, q *createRequest) { q.VolumeContext = map[string]string{"target": q.VolumeId} })},
		"what failed once fails forever":  {"Block/Unusable", embittered},
	}
}

func or(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

func known(mode string) string {
	if mode == "Nonsense" {
		return "Block"
	}
	return mode
}

func always(device, *createRequest) bool { return true }

func otherContexts(d device, q *createRequest) bool {
	return d.PublishContext["nv-volumeAttachmentName"] != q.PublishContext["nv-volumeAttachmentName"]
}

func otherPolicy(d device, q *createRequest) bool {
	return !maps.Equal(d.StorageParameters, q.StorageParameters)
}

func otherAttributes(d device, q *createRequest) bool {
	return !maps.Equal(d.VolumeContext, q.VolumeContext)
}

func noModes(_ device, q *createRequest) bool { return len(q.AccessModes) == 0 }

func otherText(d device, q *createRequest) bool { return d.VolumeMode != q.VolumeMode }

func otherMode(d device, q *createRequest) bool { return mode(d.VolumeMode) != mode(q.VolumeMode) }

func otherModes(d device, q *createRequest) bool { return !slices.Equal(d.AccessModes, q.AccessModes) }

func moreModes(d device, q *createRequest) bool {
	return len(q.AccessModes) > len(d.AccessModes) && q.AccessModes[0] == d.AccessModes[0]
}

type creation = func(*reference, context.Context, *createRequest, func() (*createReply, error)) (*createReply, error)

// against handles requests for existing devices.
func against(fits func(device, *createRequest) bool, then func(*reference, device, *createRequest) (*createReply, error)) creation {
	return func(r *reference, _ context.Context, q *createRequest, next func() (*createReply, error)) (*createReply, error) {
		if d, found := r.device(q.VolumeId); found && fits(d, q) {
			return then(r, d, q)
		}
		return next()
	}
}

func refusing(code codes.Code, fits func(device, *createRequest) bool) creation {
	return against(fits, func(*reference, device, *createRequest) (*createReply, error) {
		return nil, status.Error(code, "refused")
	})
}

func adopting(fits func(device, *createRequest) bool) creation {
	return against(fits, func(_ *reference, d device, _ *createRequest) (*createReply, error) {
		return &createReply{DeviceName: d.name}, nil
	})
}

func overwriting(fits func(device, *createRequest) bool) creation {
	return against(fits, func(r *reference, d device, q *createRequest) (*createReply, error) {
		_, _ = r.put(q, d.name)
		return nil, refuse("overwritten")
	})
}

func losing(fits func(device, *createRequest) bool) creation {
	return against(fits, func(r *reference, d device, q *createRequest) (*createReply, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.devices, q.VolumeId)
		return nil, refuse("lost")
	})
}

func renamedIf(fits func(device, *createRequest) bool) creation {
	return against(fits, func(r *reference, _ device, q *createRequest) (*createReply, error) { return r.put(q, "") })
}

func renamed(r *reference, ctx context.Context, q *createRequest, next func() (*createReply, error)) (*createReply, error) {
	return renamedIf(always)(r, ctx, q, next)
}

// oneKind also creates devices that it does not announce.
func oneKind(r *reference) around {
	r.capabilities = []dputest.Capability{blockDevice, getDevice, listDevices}
	return creating(func(r *reference, _ context.Context, q *createRequest, next func() (*createReply, error)) (*createReply, error) {
		if q.VolumeMode == "Filesystem" {
			return r.put(q, "")
		}
		return next()
	})(r)
}

// secretive serves no call that would show a missing name.
func secretive(r *reference) around {
	r.capabilities = []dputest.Capability{blockDevice}
	return reply(func(c *createReply) { c.DeviceName = "" })(r)
}

func anonymous(r *reference, _ context.Context, q *createRequest, next func() (*createReply, error)) (*createReply, error) {
	if q.VolumeId == "" {
		return r.put(q, "")
	}
	return next()
}

func oddModes(_ *reference, _ context.Context, q *createRequest, next func() (*createReply, error)) (*createReply, error) {
	if slices.Contains(q.AccessModes, 99) {
		return nil, status.Error(codes.OutOfRange, "mode 99")
	}
	return next()
}

func keptWhenRefused(r *reference, _ context.Context, q *createRequest, next func() (*createReply, error)) (*createReply, error) {
	out, err := next()
	if _, found := r.device(q.VolumeId); err != nil && !found {
		_, _ = r.put(q, "")
	}
	return out, err
}

func embittered(r *reference) around {
	var mu sync.Mutex
	failed := map[string]bool{}
	return creating(func(_ *reference, _ context.Context, q *createRequest, next func() (*createReply, error)) (*createReply, error) {
		mu.Lock()
		defer mu.Unlock()
		if failed[q.VolumeId] {
			return nil, refuse("it failed before")
		}
		out, err := next()
		failed[q.VolumeId] = err != nil
		return out, err
	})(r)
}
