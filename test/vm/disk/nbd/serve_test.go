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
		t.Errorf("the geometry that the client learns (-device +client):\n%s", diff)
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
			t.Errorf("%+v arrived as %+v", step.request, last)
		}
		got, err := c.Do(nbd.Request{Command: nbd.Read, Offset: 512, Length: 1024})
		if err != nil || !bytes.Equal(got, step.want) {
			t.Fatalf("after %v: read %.32q..., %v; want %.32q...", step.request.Command, got, err, step.want)
		}
	}
	testkit.Value(c.Send(nbd.Request{Command: nbd.Disconnect}))(t)
	if err := wait(); err != nil {
		t.Errorf("a client that disconnects in order is an error: %v", err)
	}
	if m.answered != 10 {
		t.Errorf("the device was told of %d answers, 10 were given", m.answered)
	}
}

// A request that breaks the rules is answered, does not reach the device, and
// the next one is understood.
func TestRefused(t *testing.T) {
	const size = 1 << 20
	m := newMemory(size)
	c, _ := dial(t, m)
	for name, test := range map[string]struct {
		request nbd.Request
		want    nbd.Errno
	}{
		"read beyond the end":     {nbd.Request{Command: nbd.Read, Offset: size, Length: 512}, nbd.EINVAL},
		"read across the end":     {nbd.Request{Command: nbd.Read, Offset: size - 512, Length: 1024}, nbd.EINVAL},
		"write across the end":    {nbd.Request{Command: nbd.Write, Offset: size - 512, Data: make([]byte, 1024)}, nbd.ENOSPC},
		"write far beyond":        {nbd.Request{Command: nbd.Write, Offset: 1<<64 - 512, Data: make([]byte, 1024)}, nbd.ENOSPC},
		"zeroes across the end":   {nbd.Request{Command: nbd.WriteZeroes, Offset: 512, Length: size}, nbd.ENOSPC},
		"trim across the end":     {nbd.Request{Command: nbd.Trim, Offset: 512, Length: size}, nbd.EINVAL},
		"offset between sectors":  {nbd.Request{Command: nbd.Write, Offset: 100, Data: make([]byte, 512)}, nbd.EINVAL},
		"length between sectors":  {nbd.Request{Command: nbd.Read, Length: 513}, nbd.EINVAL},
		"nothing to write":        {nbd.Request{Command: nbd.Write}, nbd.EINVAL},
		"a longer read than told": {nbd.Request{Command: nbd.Read, Length: nbd.MaxPayload + 512}, nbd.EINVAL},
		"a longer write":          {nbd.Request{Command: nbd.Write, Data: make([]byte, nbd.MaxPayload+512)}, nbd.EINVAL},
		"a flush of a range":      {nbd.Request{Command: nbd.Flush, Length: 512}, nbd.EINVAL},
		"a flag out of place":     {nbd.Request{Command: nbd.Read, Length: 512, NoHole: true}, nbd.EINVAL},
		"an unknown command":      {nbd.Request{Command: 77, Length: 512}, nbd.EINVAL},
	} {
		_, err := c.Do(test.request)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want: %v", name, err, test.want)
		}
	}
	if did := m.requests(); len(did) != 0 {
		t.Errorf("%d refused requests reached the device: %+v", len(did), did)
	}
	if _, err := c.Do(nbd.Request{Command: nbd.Flush, FUA: true}); err != nil {
		t.Errorf("a flush with FUA, which has to be accepted: %v", err)
	}
}

func TestAttackEndsTheConnection(t *testing.T) {
	c, wait := dial(t, newMemory(1<<20))
	// The client's message has only its header: the length is the offence.
	r := nbd.Request{Command: nbd.Trim, Length: 1 << 31}
	testkit.Value(c.Send(r))(t)
	if _, _, err := c.Receive(); err != nil {
		t.Fatalf("a long trim has to be answered: %v", err)
	}
	conn, wait2 := serve(t, newMemory(1<<20))
	enter(t, conn)
	send(t, conn, request(0, nbd.Write, 0, 1<<31))
	if err := wait2(); err == nil {
		t.Error("a write of 2 GiB was waited for")
	}
	c.Close()
	if err := wait(); err != nil {
		t.Errorf("a client that hangs up between requests is an error: %v", err)
	}
}

// Clients that die in the middle leave nothing behind (see TestMain), and what
// had not come in whole is not carried out.
func TestClientDiesHalfWay(t *testing.T) {
	for name, rest := range map[string][]byte{
		"in a header":        request(0, nbd.Write, 0, 1024)[:13],
		"before the data":    request(0, nbd.Write, 0, 1024),
		"in the data":        append(request(0, nbd.Write, 0, 1024), make([]byte, 1000)...),
		"in refused data":    append(request(0, nbd.Write, 7, 1024), make([]byte, 1000)...),
		"with another magic": make([]byte, 28),
	} {
		m := newMemory(1 << 20)
		conn, wait := serve(t, m)
		enter(t, conn)
		send(t, conn, rest)
		conn.Close()
		if err := wait(); err == nil {
			t.Errorf("%s: no error", name)
		}
		if did := m.requests(); len(did) != 0 {
			t.Errorf("%s: the device got %+v", name, did)
		}
	}
}

// A request is marked when it comes in, also while another is carried out: a
// flush that was sent before a write had its answer does not cover it.
func TestMarkedOnArrival(t *testing.T) {
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
		t.Errorf("marks %d and %d, want 1 and 2", did[0].Mark, did[1].Mark)
	}
}

// markedDevice tells when a number of requests has come in.
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

// A device that is gone answers nothing, not even the request in which it
// went, and hangs up on nobody.
func TestSilence(t *testing.T) {
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
		t.Fatalf("Serve ended with %v though the device is only silent", err)
	case err := <-got:
		t.Fatalf("the client got an answer or lost the connection: %v", err)
	default:
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the end of ctx is an error: %v", err)
	}
	if err := <-got; !errors.Is(err, io.EOF) {
		t.Errorf("the client got %v, want the end of the connection", err)
	}
	if did := m.requests(); len(did) != 1 || m.answered != 0 {
		t.Errorf("the device carried out %d requests and was told of %d answers, want 1 and 0", len(did), m.answered)
	}
}
