package nbd_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// stream is a client that sends fixed bytes and disconnects.
type stream struct {
	io.Reader
	received bytes.Buffer
}

func (s *stream) Write(p []byte) (int, error) { return s.received.Write(p) }
func (s *stream) Close() error                { return nil }

// fuzzSize is the size of the fuzzed device.
const fuzzSize = 64 << 10

func fuzzed(t *testing.T, said []byte) *memory {
	m := newMemory(fuzzSize)
	s := &stream{Reader: bytes.NewReader(said)}
	_ = nbd.Serve(t.Context(), s, m) // must not block or panic
	for _, r := range m.did {
		switch {
		case r.Command == nbd.Flush && r.Offset == 0 && r.Length == 0:
		case r.Command != nbd.Read && r.Command != nbd.Write && r.Command != nbd.Trim && r.Command != nbd.WriteZeroes,
			r.Length == 0, r.Offset%512 != 0, r.Length%512 != 0, r.Offset > fuzzSize, r.Offset+uint64(r.Length) > fuzzSize,
			r.Command == nbd.Write && len(r.Data) != int(r.Length):
			t.Errorf("the device got %v of %d bytes at %d with %d bytes of data", r.Command, r.Length, r.Offset, len(r.Data))
		}
	}
	if m.answered != len(m.did) {
		t.Errorf("%d requests were executed, %d answered", len(m.did), m.answered)
	}
	return m
}

// FuzzServe sends arbitrary bytes: Serve must return, and the device must get
// only valid requests.
func FuzzServe(f *testing.F) {
	f.Add(join(clientPlus, option(7, 0, 0, 0, 0, 0, 1, 0, 3), request(1, nbd.Write, 512, 512), make([]byte, 512), request(0, nbd.Flush, 0, 0)))
	f.Add(join(clientPlus, option(3), option(6, 0, 0, 0, 0, 0, 0), option(8), option(1), request(0, nbd.Read, 0, 512)))
	f.Add(join(clientPlus, option(2)))
	f.Fuzz(func(t *testing.T, said []byte) { fuzzed(t, said) })
}

// FuzzRequest sends arbitrary requests after a valid handshake.
func FuzzRequest(f *testing.F) {
	for _, c := range []nbd.Command{nbd.Read, nbd.Write, nbd.Disconnect, nbd.Flush, nbd.Trim, nbd.WriteZeroes, 5, 7} {
		f.Add(uint16(1), uint16(c), uint64(512), uint32(1024), make([]byte, 1024))
		f.Add(uint16(2), uint16(c), uint64(1<<64-512), uint32(1024), make([]byte, 1000))
		f.Add(uint16(0), uint16(c), uint64(0), uint32(1<<32-512), []byte{})
		f.Add(uint16(0), uint16(c), uint64(0), uint32(0), []byte{})
	}
	f.Fuzz(func(t *testing.T, flags, command uint16, offset uint64, length uint32, data []byte) {
		flush := request(0, nbd.Flush, 0, 0)
		m := fuzzed(t, join(clientPlus, option(1), flush, request(flags, nbd.Command(command), offset, length), data))
		if len(m.did) == 0 {
			t.Error("the flush before the request was not executed")
		}
	})
}
