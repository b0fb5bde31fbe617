package dputest_test

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func deleteMutants() map[string]mutant {
	return map[string]mutant{
		"absent is NOT_FOUND":         {"Block/DeleteAbsent Block/Delete", deleting(absentIs(codes.NotFound))},
		"absent is refused":           {"Block/DeleteAbsent", deleting(absentIs(codes.FailedPrecondition))},
		"name is required":            {"Block/Delete", deleting(nameless)},
		"no name deletes nothing":     {"NothingLeft Block/Delete", deleting(namelessOK)},
		"delete is undone":            {"Block/Delete Block/List Block/Get", deleting(nothing)},
		"deletes all":                 {"Block/Delete Block/List", deleting(everything)},
		"any name will do":            {"Block/DeleteMismatch", request(func(_ *reference, q *deleteRequest) { q.DeviceName = "" })},
		"any volume will do":          {"Block/DeleteMismatch", deleting(byName)},
		"mismatch is refused":         {"Block/DeleteMismatch", deleting(strict)},
		"no volume is INVALID":        {"Block/DeleteMismatch", recode[deleteRequest](codes.FailedPrecondition, codes.InvalidArgument)},
		"no volume is all volumes":    {"Block/DeleteMismatch", deleting(emptyIsAll)},
		"path in a name is walked":    {"Block/DeleteMismatch", deleting(walking)},
		"deleted once, created never": {"Block/Delete", onlyOnce},
	}
}

type deletion = func(*reference, context.Context, *deleteRequest, func() (*deleteReply, error)) (*deleteReply, error)

func absentIs(code codes.Code) deletion {
	return func(r *reference, _ context.Context, q *deleteRequest, next func() (*deleteReply, error)) (*deleteReply, error) {
		if _, found := r.device(q.VolumeId); !found {
			return nil, status.Error(code, "absent")
		}
		return next()
	}
}

func nameless(_ *reference, _ context.Context, q *deleteRequest, next func() (*deleteReply, error)) (*deleteReply, error) {
	if q.DeviceName == "" {
		return nil, refuse("device_name is empty")
	}
	return next()
}

func namelessOK(_ *reference, _ context.Context, q *deleteRequest, next func() (*deleteReply, error)) (*deleteReply, error) {
	if q.DeviceName == "" {
		return &deleteReply{}, nil
	}
	return next()
}

func nothing(*reference, context.Context, *deleteRequest, func() (*deleteReply, error)) (*deleteReply, error) {
	return &deleteReply{}, nil
}

func everything(r *reference, _ context.Context, _ *deleteRequest, next func() (*deleteReply, error)) (*deleteReply, error) {
	r.mu.Lock()
	clear(r.devices)
	r.mu.Unlock()
	return next()
}

func emptyIsAll(r *reference, ctx context.Context, q *deleteRequest, next func() (*deleteReply, error)) (*deleteReply, error) {
	if q.VolumeId == "" && q.DeviceName == "" {
		return everything(r, ctx, q, next)
	}
	return next()
}

// byName ignores the volume.
func byName(r *reference, _ context.Context, q *deleteRequest, next func() (*deleteReply, error)) (*deleteReply, error) {
	r.mu.Lock()
	for id, d := range r.devices {
		if d.name == q.DeviceName {
			delete(r.devices, id)
		}
	}
	r.mu.Unlock()
	return next()
}

// walking uses the last element of a path as name.
func walking(r *reference, ctx context.Context, q *deleteRequest, next func() (*deleteReply, error)) (*deleteReply, error) {
	if i := strings.LastIndex(q.DeviceName, "/"); i >= 0 {
		return byName(r, ctx, &deleteRequest{DeviceName: q.DeviceName[i+1:]}, next)
	}
	return next()
}

func strict(r *reference, _ context.Context, q *deleteRequest, next func() (*deleteReply, error)) (*deleteReply, error) {
	if d, found := r.device(q.VolumeId); found && q.DeviceName != "" && d.name != q.DeviceName {
		return nil, refuse("volume %q has device %q", q.VolumeId, d.name)
	}
	return next()
}

// onlyOnce never recreates a deleted device.
func onlyOnce(r *reference) around {
	var mu sync.Mutex
	dead := map[string]bool{}
	return func(ctx context.Context, req any, next grpc.UnaryHandler) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		switch q := req.(type) {
		case *deleteRequest:
			dead[q.VolumeId] = true
		case *createRequest:
			if dead[q.VolumeId] {
				return nil, refuse("volume %q was deleted", q.VolumeId)
			}
		}
		return next(ctx, req)
	}
}
