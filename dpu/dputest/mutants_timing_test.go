package dputest_test

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func timingMutants() map[string]mutant {
	return map[string]mutant{
		"two for one":                 {"Block/SameVolumeAtOnce", creating(twice)},
		"names collide":               {"Block/VolumesAtOnce", creating(colliding)},
		"busy is ABORTED":             {"Block/SameVolumeAtOnce Block/CreateAndDeleteAtOnce", busyIs(codes.Aborted)},
		"busy is UNAVAILABLE":         {"Block/CreateAndDeleteAtOnce", busyIs(codes.Unavailable)},
		"an interrupted call is lost": {"Block/InterruptedCalls Block/RetryContinues", jammed},
		"a retry starts over":         {"Block/RetryContinues", creating(startOver)},
		"delete does not wait":        {"Block/Negation Block/NegationOfAnAbandonedCall", deleting(hasty)},
		"delete does not cancel":      {"Block/Negation", deleting(waiting)},
		"delete is refused meanwhile": {"Block/Negation", deleting(busy)},
		"work goes on unseen":         {"Block/NegationOfAnAbandonedCall", creating(unseen)},
		"volumes wait for each other": {"Block/Parallel", oneLock},
	}
}

func twice(r *reference, ctx context.Context, q *createRequest, next func() (*createReply, error)) (*createReply, error) {
	if _, found := r.device(q.VolumeId); found {
		return next()
	}
	moment(ctx)
	return r.put(q, "")
}

func colliding(r *reference, ctx context.Context, q *createRequest, next func() (*createReply, error)) (*createReply, error) {
	if _, found := r.device(q.VolumeId); found {
		return next()
	}
	r.mu.Lock()
	n := r.last
	r.mu.Unlock()
	moment(ctx)
	if _, found := r.device(q.VolumeId); found {
		return next()
	}
	return r.put(q, "mem"+strings.Repeat("i", n))
}

// busyIs returns a code for concurrent calls.
func busyIs(code codes.Code) breaking {
	return func(*reference) around {
		var mu sync.Mutex
		at := map[string]bool{}
		return func(ctx context.Context, req any, next grpc.UnaryHandler) (any, error) {
			var id string
			switch q := req.(type) {
			case *createRequest:
				id = q.VolumeId
			case *deleteRequest:
				id = q.VolumeId
			default:
				return next(ctx, req)
			}
			mu.Lock()
			taken := at[id]
			at[id] = true
			mu.Unlock()
			if taken {
				return nil, status.Error(code, "busy")
			}
			moment(ctx)
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				delete(at, id)
			}()
			return next(ctx, req)
		}
	}
}

// jammed stays blocked after a cancelled call.
func jammed(r *reference) around {
	var mu sync.Mutex
	lost := map[string]bool{}
	return creating(func(r *reference, ctx context.Context, q *createRequest, next func() (*createReply, error)) (*createReply, error) {
		mu.Lock()
		bad := lost[q.VolumeId]
		mu.Unlock()
		if bad {
			return nil, refuse("volume %q is half made", q.VolumeId)
		}
		moment(ctx)
		out, err := next()
		if ctx.Err() != nil {
			mu.Lock()
			defer mu.Unlock()
			lost[q.VolumeId] = true
		}
		return out, err
	})(r)
}

// startOver creates a device for each pending call.
func startOver(r *reference, _ context.Context, q *createRequest, next func() (*createReply, error)) (*createReply, error) {
	h := r.take(q.VolumeId)
	if h == nil {
		return next()
	}
	close(h.held)
	<-h.released
	return r.put(q, "")
}

// unseen continues after a cancel, unknown to deletes.
func unseen(r *reference, ctx context.Context, q *createRequest, next func() (*createReply, error)) (*createReply, error) {
	return startOver(r, ctx, q, next)
}

func hasty(r *reference, _ context.Context, q *deleteRequest, next func() (*deleteReply, error)) (*deleteReply, error) {
	if r.operation(q.VolumeId) != nil {
		return &deleteReply{}, nil
	}
	return next()
}

func waiting(r *reference, ctx context.Context, q *deleteRequest, next func() (*deleteReply, error)) (*deleteReply, error) {
	if op := r.operation(q.VolumeId); op != nil {
		select {
		case <-op.done:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return next()
}

func busy(r *reference, _ context.Context, q *deleteRequest, next func() (*deleteReply, error)) (*deleteReply, error) {
	if r.operation(q.VolumeId) != nil {
		return nil, refuse("volume %q is being made", q.VolumeId)
	}
	return next()
}

func oneLock(r *reference) around {
	one := make(chan struct{}, 1)
	return creating(func(_ *reference, ctx context.Context, _ *createRequest, next func() (*createReply, error)) (*createReply, error) {
		select {
		case one <- struct{}{}:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		defer func() { <-one }()
		return next()
	})(r)
}
