package server

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/errs"
)

// maxMessage bounds an error's text in bytes: it travels in a header, and
// peers put it into events and annotations.
const maxMessage = 4 << 10

// answer turns a handler's error into what the peer gets, never with details.
// A status passes as it is; the contract's table decides about the rest; where
// it knows nothing better, an ended context is named as such.
func (s *GRPC) answer(err error) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	// Only a status itself, not one deep inside: that is a peer's answer to
	// another question.
	if direct, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		if st := direct.GRPCStatus(); st.Code() != codes.OK {
			return status.New(st.Code(), errs.Clip(st.Message(), maxMessage))
		}
	}
	code := s.code(err)
	switch code {
	case codes.Internal, codes.Unknown, codes.OK:
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			code = codes.DeadlineExceeded
		case errors.Is(err, context.Canceled):
			code = codes.Canceled
		case code == codes.OK:
			code = codes.Unknown // an error is never a success
		}
	}
	return status.New(code, errs.Clip(err.Error(), maxMessage))
}
