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

func TestFramesComeThrough(t *testing.T) {
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
			t.Fatalf("a frame of kind %d", f.Kind)
		}
		got = append(got, f.Payload...)
	}
	if !bytes.Equal(got, long) {
		t.Error("the bytes differ")
	}
	if _, err := ReadFrame(&b); !errors.Is(err, io.EOF) {
		t.Errorf("after the last frame: %v", err)
	}
	if err := frames.Send(Stdout, make([]byte, MaxFrame+1)); err == nil || b.Len() > 0 {
		t.Errorf("a frame that is too long: %v, %d bytes sent", err, b.Len())
	}
}

// Frames from many goroutines do not mix.
func TestFramesFromManyAtOnce(t *testing.T) {
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

func TestBadFrames(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"half a head":    {"\x02\x00\x00", "unexpected EOF"},
		"kind 0":         {"\x00\x00\x00\x00\x00", "unknown kind 0"},
		"kind 9":         {"\x09\x00\x00\x00\x00", "unknown kind 9"},
		"too long":       {"\x02\x00\x01\x00\x01", "65537 bytes; 65536 is the most"},
		"half a payload": {"\x02\x00\x00\x00\x03ab", "cut off"},
	} {
		if f, err := ReadFrame(strings.NewReader(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v, want an error with %q", name, f, err, c.want)
		}
	}
}

// A frame that is read is the one that was written; no announced length makes
// the reader hold more than a frame may have.
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
