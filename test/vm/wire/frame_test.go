package wire

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestFramesRoundTrip(t *testing.T) {
	var b bytes.Buffer
	frames := NewFrames(&b)
	long := bytes.Repeat([]byte("abc"), MaxFrame)
	if n, err := frames.Stream(Stdout).Write(long); n != len(long) || err != nil {
		t.Fatalf("wrote %d of %d bytes: %v", n, len(long), err)
	}
	testkit.Must(t, frames.Send(StdinEnd, nil))
	var got []byte
	for {
		f := testkit.Value(ReadFrame(&b))(t)
		if f.Kind == StdinEnd {
			break
		}
		if f.Kind != Stdout {
			t.Fatalf("got a frame of kind %d, want stdout", f.Kind)
		}
		got = append(got, f.Payload...)
	}
	if !bytes.Equal(got, long) {
		t.Error("the received bytes differ from the sent ones")
	}
	if _, err := ReadFrame(&b); !errors.Is(err, io.EOF) {
		t.Errorf("after the last frame: got %v, want EOF", err)
	}
	if err := frames.Send(Stdout, make([]byte, MaxFrame+1)); err == nil || b.Len() > 0 {
		t.Errorf("send a frame that is too long: got error %v, %d bytes sent", err, b.Len())
	}
}

func TestConcurrentFramesDoNotMix(t *testing.T) {
	var b bytes.Buffer
	frames := NewFrames(&b)
	var all sync.WaitGroup
	for _, kind := range []Kind{Stdout, Stderr} {
		all.Go(func() {
			for range 200 {
				if err := frames.Send(kind, bytes.Repeat([]byte{byte(kind)}, 100)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for range 400 {
		f := testkit.Value(ReadFrame(&b))(t)
		if diff := cmp.Diff(bytes.Repeat([]byte{byte(f.Kind)}, 100), f.Payload); diff != "" {
			t.Fatal(diff)
		}
	}
}

func TestInvalidFramesAreRejected(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"partial header":  {"\x02\x00\x00", "unexpected EOF"},
		"kind 0":          {"\x00\x00\x00\x00\x00", "unknown kind 0"},
		"kind 9":          {"\x09\x00\x00\x00\x00", "unknown kind 9"},
		"too long":        {"\x02\x00\x01\x00\x01", "65537 bytes, at most 65536"},
		"partial payload": {"\x02\x00\x00\x00\x03ab", "truncated"},
	} {
		if f, err := ReadFrame(strings.NewReader(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want an error with %q", name, f, err, c.want)
		}
	}
}

// A valid frame encodes to the bytes it was read from. An announced length
// above the maximum allocates nothing.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00\x02ab"))
	f.Add([]byte("\x07\x00\x00\x00\x00"))
	f.Add([]byte("\x02\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		frame, err := ReadFrame(bytes.NewReader(data))
		if err != nil {
			return
		}
		var b bytes.Buffer
		testkit.Must(t, NewFrames(&b).Send(frame.Kind, frame.Payload))
		if !bytes.HasPrefix(data, b.Bytes()) {
			t.Fatalf("%x was read as %x", data, b.Bytes())
		}
	})
}
