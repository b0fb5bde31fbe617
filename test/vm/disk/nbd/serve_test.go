package nbd_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

func TestCommands(t *testing.T) {
	m := newMemory(1 << 20)
	c, wait := dial(t, m)
	if diff := cmp.Diff(m.geometry, c.Geometry); diff != "" {
		t.Errorf("the client's geometry (-device +client):\n%s", diff)
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), 64)
	for _, step := range []struct {
		request nbd.Request
		want    []byte // of the 1024 bytes at 512, afterwards
	}{
		{nbd.Request{Command: nbd.Write, Offset: 512, Data: data}, data},
		{nbd.Request{Command: nbd.Flush}, data},
		{nbd.Request{Command: nbd.WriteZeroes, Offset: 512, Length: 512, NoHole: true}, append(make([]byte, 512), data[512:]...)},
		{nbd.Request{Command: nbd.Trim, Offset: 1024, Length: 512, FUA: true}, make([]byte, 1024)},
		{nbd.Request{Command: nbd.Write, Offset: 512, Data: data, FUA: true}, data},
	} {
		if _, err := c.Do(step.request); err != nil {
			t.Fatalf("%v: %v", step.request.Command, err)
		}
		did := m.requests()
		last := did[len(did)-1]
		if last.Command != step.request.Command || last.FUA != step.request.FUA || last.NoHole != step.request.NoHole {
			t.Errorf("request %+v reached the device as %+v", step.request, last)
		}
		got, err := c.Do(nbd.Request{Command: nbd.Read, Offset: 512, Length: 1024})
		if err != nil || !bytes.Equal(got, step.want) {
			t.Fatalf("after %v: read %.32q..., %v; want %.32q...", step.request.Command, got, err, step.want)
		}
	}
	testkit.Value(c.Send(nbd.Request{Command: nbd.Disconnect}))(t)
	if err := wait(); err != nil {
		t.Errorf("Serve failed after an orderly disconnect: %v", err)
	}
	if m.answered != 10 {
		t.Errorf("Answered was called %d times, want 10", m.answered)
	}
}

// An invalid request gets an error, does not reach the device, and does not
// break the next request.
func TestInvalidRequestsAreRejected(t *testing.T) {
	const size = 1 << 20
	m := newMemory(size)
	c, _ := dial(t, m)
	for name, test := range map[string]struct {
		request nbd.Request
		want    nbd.Errno
	}{
		"read beyond the end":    {nbd.Request{Command: nbd.Read, Offset: size, Length: 512}, nbd.EINVAL},
		"read across the end":    {nbd.Request{Command: nbd.Read, Offset: size - 512, Length: 1024}, nbd.EINVAL},
		"write across the end":   {nbd.Request{Command: nbd.Write, Offset: size - 512, Data: make([]byte, 1024)}, nbd.ENOSPC},
		"write far beyond":       {nbd.Request{Command: nbd.Write, Offset: 1<<64 - 512, Data: make([]byte, 1024)}, nbd.ENOSPC},
		"zeroes across the end":  {nbd.Request{Command: nbd.WriteZeroes, Offset: 512, Length: size}, nbd.ENOSPC},
		"trim across the end":    {nbd.Request{Command: nbd.Trim, Offset: 512, Length: size}, nbd.EINVAL},
		"offset between sectors": {nbd.Request{Command: nbd.Write, Offset: 100, Data: make([]byte, 512)}, nbd.EINVAL},
		"length between sectors": {nbd.Request{Command: nbd.Read, Length: 513}, nbd.EINVAL},
		"nothing to write":       {nbd.Request{Command: nbd.Write}, nbd.EINVAL},
		"read above MaxPayload":  {nbd.Request{Command: nbd.Read, Length: nbd.MaxPayload + 512}, nbd.EINVAL},
		"write above MaxPayload": {nbd.Request{Command: nbd.Write, Data: make([]byte, nbd.MaxPayload+512)}, nbd.EINVAL},
		"a flush of a range":     {nbd.Request{Command: nbd.Flush, Length: 512}, nbd.EINVAL},
		"a flag out of place":    {nbd.Request{Command: nbd.Read, Length: 512, NoHole: true}, nbd.EINVAL},
		"an unknown command":     {nbd.Request{Command: 77, Length: 512}, nbd.EINVAL},
	} {
		_, err := c.Do(test.request)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want: %v", name, err, test.want)
		}
	}
	if did := m.requests(); len(did) != 0 {
		t.Errorf("%d invalid requests reached the device: %+v", len(did), did)
	}
	if _, err := c.Do(nbd.Request{Command: nbd.Flush, FUA: true}); err != nil {
		t.Errorf("flush with FUA must be accepted: got %v", err)
	}
}

func TestHugeWriteEndsTheConnection(t *testing.T) {
	c, wait := dial(t, newMemory(1<<20))
	r := nbd.Request{Command: nbd.Trim, Length: 1 << 31}
	testkit.Value(c.Send(r))(t)
	if _, _, err := c.Receive(); err != nil {
		t.Fatalf("long trim must be answered: got %v", err)
	}
	conn, wait2 := serve(t, newMemory(1<<20))
	enter(t, conn)
	send(t, conn, request(0, nbd.Write, 0, 1<<31))
	if err := wait2(); err == nil {
		t.Error("Serve waited for a write of 2 GiB")
	}
	c.Close()
	if err := wait(); err != nil {
		t.Errorf("Serve failed after a disconnect between requests: %v", err)
	}
}

// A request that did not arrive completely is not executed. TestMain finds
// leaked goroutines.
func TestPartialRequestIsNotExecuted(t *testing.T) {
	for name, rest := range map[string][]byte{
		"in a header":                   request(0, nbd.Write, 0, 1024)[:13],
		"before the data":               request(0, nbd.Write, 0, 1024),
		"in the data":                   append(request(0, nbd.Write, 0, 1024), make([]byte, 1000)...),
		"in data of an invalid request": append(request(0, nbd.Write, 7, 1024), make([]byte, 1000)...),
		"with a wrong magic":            make([]byte, 28),
	} {
		m := newMemory(1 << 20)
		conn, wait := serve(t, m)
		enter(t, conn)
		send(t, conn, rest)
		conn.Close()
		if err := wait(); err == nil {
			t.Errorf("%s: Serve returned no error", name)
		}
		if did := m.requests(); len(did) != 0 {
			t.Errorf("%s: the device got %+v", name, did)
		}
	}
}

// A request is marked on arrival, even while another one is executed: a flush
// does not cover a write that was not answered when the flush was sent.
func TestRequestsAreMarkedOnArrival(t *testing.T) {
	m := newMemory(1 << 20)
	came := make(chan struct{})
	m.before = func(r nbd.Request) {
		if r.Command == nbd.Write {
			<-came
		}
	}
	marked := &markedDevice{memory: m, want: 2, came: came}
	c, _ := dial(t, marked)
	for _, r := range []nbd.Request{{Command: nbd.Write, Data: make([]byte, 512)}, {Command: nbd.Flush}} {
		testkit.Value(c.Send(r))(t)
	}
	for range 2 {
		if _, a, err := c.Receive(); err != nil || a.Error != nbd.OK {
			t.Fatal(a, err)
		}
	}
	if did := m.requests(); did[0].Mark != 1 || did[1].Mark != 2 {
		t.Errorf("got marks %d and %d, want 1 and 2", did[0].Mark, did[1].Mark)
	}
}

// markedDevice closes came at a given number of arrived requests.
type markedDevice struct {
	*memory
	want uint64
	came chan struct{}
}

func (m *markedDevice) Mark() uint64 {
	mark := m.memory.Mark()
	if mark == m.want {
		close(m.came)
	}
	return mark
}

// A device without power answers nothing, including the request during which it
// lost power, and keeps its connections open.
func TestGoneDeviceKeepsConnectionsOpen(t *testing.T) {
	m := newMemory(1 << 20)
	m.before = func(r nbd.Request) {
		if r.Command == nbd.Flush {
			close(m.gone)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ours, theirs := net.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- nbd.Serve(ctx, theirs, m) }()
	c := testkit.Value(nbd.NewClient(t.Context(), ours))(t)
	for range 2 {
		testkit.Value(c.Send(nbd.Request{Command: nbd.Flush}))(t)
	}
	<-m.gone
	got := make(chan error, 1)
	go func() { _, _, err := c.Receive(); got <- err }()
	select {
	case err := <-ended:
		t.Fatalf("Serve returned %v, want it to wait for ctx", err)
	case err := <-got:
		t.Fatalf("the client got an answer or was disconnected: %v", err)
	default:
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Serve failed at the end of ctx: %v", err)
	}
	if err := <-got; !errors.Is(err, io.EOF) {
		t.Errorf("the client got %v, want EOF", err)
	}
	if did := m.requests(); len(did) != 1 || m.answered != 0 {
		t.Errorf("got %d executed requests and %d calls of Answered, want 1 and 0", len(did), m.answered)
	}
}
