package dputest_test

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func getMutants() map[string]mutant {
	return map[string]mutant{
		"absent is FAILED_PRECONDITION": {"Block/GetAbsent", recode[getRequest](codes.NotFound, codes.FailedPrecondition)},
		"absent is UNAVAILABLE":         {"Block/GetAbsent Block/Delete", recode[getRequest](codes.NotFound, codes.Unavailable)},
		"everything is there":           {"Block/GetAbsent", recodeToOK},
		"found by the volume alone":     {"Block/GetAbsent", request(anyName)},
		"found by the name alone":       {"Block/GetAbsent", request(anyVolume)},
		"found without a volume":        {"Block/GetAbsent", request(noVolume)},
		"access modes are not told":     {"Block/Get Block/Create", reply(func(g *getReply) { g.AccessModes = nil })},
		"one access mode is told":       {"Block/Get", reply(func(g *getReply) { g.AccessModes = g.AccessModes[:1] })},
		"volume mode is not told":       {"Block/Get", reply(func(g *getReply) { g.VolumeMode = "" })},
		"volume mode is told wrong":     {"Filesystem/Get Filesystem/DefaultVolumeMode", reply(func(g *getReply) { g.VolumeMode = "Block" })},
		"found once":                    {"Block/Get", forgetful},
	}
}

func recodeToOK(*reference) around {
	return func(ctx context.Context, req any, next grpc.UnaryHandler) (any, error) {
		out, err := next(ctx, req)
		if _, fits := req.(*getRequest); fits && err != nil {
			return &getReply{}, nil
		}
		return out, err
	}
}

func anyName(r *reference, q *getRequest) {
	if d, found := r.device(q.VolumeId); found {
		q.DeviceName = d.name
	}
}

func anyVolume(r *reference, q *getRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, d := range r.devices {
		if d.name == q.DeviceName {
			q.VolumeId = id
		}
	}
}

func noVolume(r *reference, q *getRequest) {
	if q.VolumeId == "" {
		anyVolume(r, q)
	}
}

// forgetful finds each device the first time only.
func forgetful(r *reference) around {
	var mu sync.Mutex
	told := map[string]bool{}
	return instead(func(_ *reference, _ context.Context, q *getRequest, next func() (*getReply, error)) (*getReply, error) {
		mu.Lock()
		defer mu.Unlock()
		if told[q.DeviceName] {
			return nil, status.Error(codes.NotFound, "forgotten")
		}
		told[q.DeviceName] = true
		return next()
	})(r)
}
