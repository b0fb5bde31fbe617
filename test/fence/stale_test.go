package fence

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/fence/serve"
	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/testkit"
)

// The client does not notice the fence: its cable is disconnected meanwhile, so
// it keeps writing into its session and retransmits when it is unfenced. None
// of these bytes are allowed to arrive.
func TestStaleBytesOfASilentClient(t *testing.T) {
	t.Parallel()
	for _, family := range []string{"v4", "v6"} {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			h := s.host(1, 7)
			from := h.v4
			if family == "v6" {
				from = h.v6
			}
			s.silent(cleat, h, from)
		})
	}
}

func (s *site) silent(program string, h *host, from netip.Addr) {
	s.t.Helper()
	ctx := s.t.Context()
	records, service := s.records(), s.serveArmed(program, nil)
	block := fmt.Sprintf("%s/%d", from, from.BitLen())
	conn := s.dial(h, from, recordPort)
	// A large send buffer, or the client would block.
	testkit.Must(s.t, conn.(*net.TCPConn).SetWriteBuffer(1<<20))
	id := s.serial.Add(1)
	w := storage.NewWriter(id, storage.RecordSession(id, conn), 5*pace)
	s.t.Cleanup(w.Close)
	s.await(20, w)
	testkit.Must(s.t, h.cable.Disconnect(ctx))
	when := s.fence(service, []string{block}, w)
	s.sends(w, 40) // more than 8 KiB sent after the answer
	if w.Err() != nil {
		s.t.Fatalf("the client noticed the fence: %v", w.Err())
	}
	s.unfence(service, block)
	testkit.Must(s.t, h.cable.Reconnect(ctx))
	s.await(20, s.writer(h, from))
	// Retransmitted bytes must find no session.
	testkit.EventuallyNil(s.t, "the old session ends", func() error {
		select {
		case <-w.Done():
			return nil
		default:
		}
		if got := s.whole(records)[id]; got[len(got)-1].Number > when.sent[w] {
			return nil
		}
		return errors.New("the session has not ended")
	})
	s.nothingSince(when, records)
}

// sends waits until a writer has sent that many more writes.
func (s *site) sends(w *storage.Writer, more uint64) {
	s.t.Helper()
	want := w.Sent() + more
	testkit.EventuallyNil(s.t, "the client keeps writing", func() error {
		if sent := w.Sent(); sent < want {
			return fmt.Errorf("%d of %d sent, session ended by %v", sent, want, w.Err())
		}
		return nil
	})
}

// The storage server hangs with bytes of the client in its queues: as long as
// the server can still read them, the fence call fails.
func TestHungServerIsNotFenced(t *testing.T) {
	t.Parallel()
	newSite(t).hang(cleat)
}

func (s *site) hang(program string) {
	s.t.Helper()
	ctx := s.t.Context()
	records, service := s.records(), s.serveArmed(program, nil, "--end-timeout", "1s")
	victim, neighbour := s.host(1, 7), s.host(2, 5)
	w, n := s.writer(victim, victim.v4), s.writer(neighbour, neighbour.v4)
	s.await(20, w, n)
	testkit.Must(s.t, records.Signal(unix.SIGSTOP))
	s.sends(w, 40)                                                                            // these stay in the server's queue
	testkit.EventuallyNil(s.t, "the error names the process with the session", func() error { // a stall can end a call earlier
		err := service.Fence(ctx, nil, victimBlock)
		if status.Code(err) != codes.Unavailable {
			s.t.Fatalf("while a server has the session open: %v", err)
		}
		if !strings.Contains(err.Error(), fmt.Sprintf("process %d", records.PID)) {
			return err
		}
		return nil
	})
	s.refused(victim, victim.v4, recordPort) // the intent holds
	if err := s.listed(service); err != nil {
		s.t.Errorf("an incomplete fence is listed: %v", err)
	}
	s.listNames(service, records)
	// Nor after the fence server was killed, which has lost all unrecorded
	// state.
	testkit.Must(s.t, service.Kill())
	service = s.serveArmed(program, nil, "--end-timeout", "1s")
	s.code(service.Fence(ctx, nil, victimBlock), codes.Unavailable)
	testkit.Must(s.t, records.Signal(unix.SIGCONT))
	testkit.EventuallyNil(s.t, "the fence is repeated", func() error { return service.Fence(ctx, nil, victimBlock) })
	when := takeBaseline(w)
	s.await(50, n)
	s.unfence(service, victimBlock)
	s.await(20, s.writer(victim, victim.v4))
	s.nothingSince(when, records)
}

// listNames checks that cleat fence list names the process that a fence waits
// for, with its descriptor.
func (s *site) listNames(service *serve.Service, records *storage.Records) {
	s.t.Helper()
	out, err := exec.CommandContext(s.t.Context(), cleat, "fence", "list", "--endpoint", service.Endpoint).CombinedOutput()
	want := regexp.MustCompile(fmt.Sprintf(`a session from 10\.9\.1\.7:\d+ to 10\.9\.0\.2:%d has not ended: open in \S+ \(process %d\) as descriptor \d+`, recordPort, records.PID))
	if err != nil || !want.Match(out) {
		s.t.Errorf("cleat fence list: %v\n%s\nwant %s", err, out, want)
	}
}

// A client that is connected, but that the server has not accepted yet, does
// not bypass the fence either.
func TestUnacceptedSession(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records, service := s.records(), s.serve("--end-timeout", "1s")
	victim := s.host(1, 7)
	before := s.writer(victim, victim.v4)
	s.await(20, before)
	testkit.Must(t, records.Signal(unix.SIGSTOP))
	w := s.writer(victim, victim.v4) // only the kernel has answered
	s.sends(w, 20)
	s.code(service.Fence(t.Context(), nil, "10.9.1.7/32"), codes.Unavailable)
	testkit.Must(t, records.Signal(unix.SIGCONT))
	testkit.EventuallyNil(t, "the fence is repeated", func() error { return service.Fence(t.Context(), nil, "10.9.1.7/32") })
	when := takeBaseline(before)
	sent := w.Sent()
	s.unfence(service, "10.9.1.7/32")
	s.await(20, s.writer(victim, victim.v4))
	s.nothingSince(when, records)
	for _, r := range s.whole(records)[w.ID] {
		if r.Number > sent || r.At.After(when.at) {
			t.Errorf("record %d of an unaccepted session arrived %s after the answer", r.Number, r.At.Sub(when.at))
		}
	}
}

// A fence call continues after its caller has gone, and a repeated call joins it.
func TestCallerDisconnects(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	records, service := s.records(), s.serve()
	victim := s.host(1, 7)
	w := s.writer(victim, victim.v4)
	s.await(20, w)
	testkit.Must(t, records.Signal(unix.SIGSTOP))
	caller, leave := context.WithCancel(t.Context())
	defer leave()
	answered := make(chan error, 1)
	go func() { answered <- service.Fence(caller, nil, victimBlock) }()
	testkit.EventuallyNil(t, "the call has reached the session", s.holds)
	leave()
	s.code(<-answered, codes.Canceled)
	s.refused(victim, victim.v4, recordPort)
	testkit.Must(t, records.Signal(unix.SIGCONT))
	when := s.fence(service, []string{"10.9.1.7/32"}, w)
	s.nothingSince(when, records)
}
