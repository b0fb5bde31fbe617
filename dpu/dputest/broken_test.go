package dputest_test

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
)

type around func(ctx context.Context, req any, next grpc.UnaryHandler) (any, error)

// breaking implements a mutant's fault; it can be stateful.
type breaking func(*reference) around

func reply[R any](change func(*R)) breaking {
	return func(*reference) around {
		return func(ctx context.Context, req any, next grpc.UnaryHandler) (any, error) {
			out, err := next(ctx, req)
			if r, fits := out.(*R); fits && err == nil {
				change(r)
			}
			return out, err
		}
	}
}

func request[Q any](change func(*reference, *Q)) breaking {
	return func(r *reference) around {
		return func(ctx context.Context, req any, next grpc.UnaryHandler) (any, error) {
			if q, fits := req.(*Q); fits {
				change(r, q)
			}
			return next(ctx, req)
		}
	}
}

func recode[Q any](from, to codes.Code) breaking {
	return func(*reference) around {
		return func(ctx context.Context, req any, next grpc.UnaryHandler) (any, error) {
			out, err := next(ctx, req)
			if _, fits := req.(*Q); fits && status.Code(err) == from {
				return nil, status.Error(to, "recoded")
			}
			return out, err
		}
	}
}

// instead answers a call or passes it on.
func instead[Q, R any](answer func(r *reference, ctx context.Context, req *Q, next func() (*R, error)) (*R, error)) breaking {
	return func(r *reference) around {
		return func(ctx context.Context, req any, next grpc.UnaryHandler) (any, error) {
			q, fits := req.(*Q)
			if !fits {
				return next(ctx, req)
			}
			return answer(r, ctx, q, func() (*R, error) {
				out, err := next(ctx, req)
				if err != nil {
					return nil, err
				}
				return out.(*R), nil
			})
		}
	}
}

type (
	createRequest = storagev1.CreateDeviceRequest
	createReply   = storagev1.CreateDeviceResponse
	deleteRequest = storagev1.DeleteDeviceRequest
	deleteReply   = storagev1.DeleteDeviceResponse
	getRequest    = storagev1.GetDeviceRequest
	getReply      = storagev1.GetDeviceResponse
	listRequest   = storagev1.ListDevicesRequest
	listReply     = storagev1.ListDevicesResponse
)

func creating(answer func(r *reference, ctx context.Context, req *createRequest, next func() (*createReply, error)) (*createReply, error)) breaking {
	return instead(answer)
}

func deleting(answer func(r *reference, ctx context.Context, req *deleteRequest, next func() (*deleteReply, error)) (*deleteReply, error)) breaking {
	return instead(answer)
}

func listing(answer func(r *reference, ctx context.Context, req *listRequest, next func() (*listReply, error)) (*listReply, error)) breaking {
	return instead(answer)
}

func (r *reference) device(volumeID string) (device, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, found := r.devices[volumeID]
	return d, found
}

func (r *reference) operation(volumeID string) *operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending[volumeID]
}

func (r *reference) put(req *createRequest, name string) (*createReply, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name == "" {
		name = r.newName()
	}
	r.devices[req.VolumeId] = device{req, name}
	return &createReply{DeviceName: name}, nil
}

func (r *reference) take(volumeID string) *hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.holds[volumeID]
	delete(r.holds, volumeID)
	return h
}

// moment delays the broken plugins.
func moment(ctx context.Context) {
	select {
	case <-time.After(20 * time.Millisecond):
	case <-ctx.Done():
	}
}
