package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/request"
)

// fenceService is a fence service that is asked until it has answered for good.
type fenceService struct {
	*client.Client
	request client.Request
	notice  func(string)
	// absent is how long a service that is not there is asked; 0 is as long as
	// the command may take.
	absent time.Duration
}

// until asks again while the answer is one that a repeat may change: every call
// of the contract may be repeated, and goes on where the last one was.
func (s *fenceService) until(ctx context.Context, call func(context.Context) error) error {
	var last error
	begun, told := time.Now(), ""
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := call(ctx)
		if err == nil {
			return nil
		}
		over := outOfTime(ctx, err)
		if !over || last == nil {
			last = err // what the service said tells more than that time ran out
		}
		if over {
			return s.gaveUp(ctx, last)
		}
		if !s.mayChange(err, time.Since(begun)) {
			return s.explain(err)
		}
		if news := last.Error(); news != told && time.Since(begun) > patience {
			s.notice(news + "; trying again")
			told = news
		}
		if errors.Is(err, client.ErrNobody) {
			wait = min(wait, 400*time.Millisecond) // who starts is soon there
		}
		if !sleep(ctx, wait) {
			return s.gaveUp(ctx, last)
		}
	}
}

// outOfTime reports whether a call ended because the command may take no
// longer. gRPC may see that a moment before the context does; a connection may
// have a time of its own.
func outOfTime(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, client.ErrNobody)
}

// gaveUp is the error of a command whose time is over, or that is interrupted.
func (s *fenceService) gaveUp(ctx context.Context, last error) error {
	ended := cmp.Or(ctx.Err(), context.DeadlineExceeded)
	if errors.Is(last, ended) {
		return s.explain(last)
	}
	return fmt.Errorf("%w (gave up: %w)", s.explain(last), ended)
}

// sleep makes a pause; false: ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *fenceService) mayChange(err error, past time.Duration) bool {
	switch {
	case errors.Is(err, client.ErrNobody) && errors.Is(err, fs.ErrPermission):
		return false // waiting makes nobody root
	case errors.Is(err, client.ErrNobody):
		return s.absent == 0 || past < s.absent
	}
	kind := errs.KindOf(err)
	return kind == errs.Unavailable || kind == errs.Busy
}

// explain adds what to do about an error.
func (s *fenceService) explain(err error) error {
	advice := ""
	answer, answered := errors.AsType[*client.Error](err)
	switch {
	case answered && answer.Code == codes.Unimplemented && strings.Contains(answer.Message, "unknown service"):
		advice = "no CSI-Addons is served there; a driver has a socket of its own for it, beside that of CSI"
	case answered && answer.Code == codes.Unimplemented:
		advice = "the driver does not serve that, or not in this mode; see what it announces with: cleat fence driver"
	case answered && answer.Code == codes.InvalidArgument && strings.Contains(answer.Message, request.ForceParameter+"=true"):
		advice = "--force does that"
	case answered && answer.Code == codes.Unauthenticated:
		advice = "give the secrets that it wants with --secret KEY=FILE"
	case !errors.Is(err, client.ErrNobody):
	case errors.Is(err, fs.ErrNotExist):
		advice = "is cleat fence serve running? Start it, or name a driver's socket with --endpoint"
	case errors.Is(err, unix.ECONNREFUSED):
		advice = "nobody listens on it any more: is cleat fence serve running?"
	case errors.Is(err, fs.ErrPermission):
		advice = "this user may not use the socket; run it as root"
	}
	if advice == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, advice)
}

// readSecrets reads KEY=FILE. The values are in no argument of a process and in
// no message.
func readSecrets(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		key, path, ok := strings.Cut(arg, "=")
		if !ok || key == "" || path == "" {
			return nil, errors.New("--secret takes KEY=FILE, as userKey=/etc/cleat/user.key: the name of the secret, and the file that holds its value")
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("--secret %s is given twice", key)
		}
		value, err := readSecret(path)
		if err != nil {
			// Its path may be a value that somebody took for one.
			return nil, fmt.Errorf("--secret %s: its file cannot be read: %w", key, pathless(err))
		}
		out[key] = value
	}
	return out, nil
}

// maxSecret bounds a file with a secret, in bytes.
const maxSecret = 64 << 10

func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	switch {
	case err != nil:
		return "", err
	case len(text) > maxSecret:
		return "", fmt.Errorf("it has more than %d bytes", maxSecret)
	}
	if text = bytes.TrimRight(text, "\r\n"); len(text) == 0 {
		return "", errors.New("it is empty")
	}
	return string(text), nil
}

func pathless(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}
