package image

import (
	"encoding/binary"
	"strings"
	"testing"
)

// bzImage returns a kernel file with the given payload offset and length.
func bzImage(packed string, size uint32, offset, length uint32) []byte {
	image := make([]byte, 3*512)
	image[0x1f1] = 2 // sectors after the first
	copy(image[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(image[0x248:], offset)
	binary.LittleEndian.PutUint32(image[0x24c:], length)
	image = append(image, "pad!"+packed...)
	return binary.LittleEndian.AppendUint32(image, size)
}

func TestPayload(t *testing.T) {
	packed, size, err := payload(bzImage("kernel", 77, 4, 10))
	if string(packed) != "kernel" || size != 77 || err != nil {
		t.Errorf("got %q, size %d, error %v", packed, size, err)
	}
	for name, image := range map[string][]byte{
		"empty": nil, "short": make([]byte, 0x24f), "no header": make([]byte, 4096),
		"beyond the end": bzImage("kernel", 77, 4, 11), "far beyond": bzImage("kernel", 77, 1<<32-1, 1<<32-1), "no size": bzImage("kernel", 77, 4, 3),
	} {
		if got, _, err := payload(image); err == nil {
			t.Errorf("%s: got %q, want an error", name, got)
		}
	}
}

func TestUnpacker(t *testing.T) {
	for data, want := range map[string]string{"\xfd7zXZ\x00rest": "xz", "\x28\xb5\x2f\xfdrest": "zstd"} {
		if got, err := unpacker([]byte(data)); err != nil || got[0] != want {
			t.Errorf("%q: got unpacker %v, %v", data, got, err)
		}
	}
	for _, data := range []string{"", "\x1f\x8b\x08\x00\x00"} {
		if got, err := unpacker([]byte(data)); err == nil || !strings.Contains(err.Error(), "neither with xz nor with zstd") {
			t.Errorf("%q: got unpacker %v, %v", data, got, err)
		}
	}
}

func FuzzPayload(f *testing.F) {
	f.Add(bzImage("kernel", 77, 4, 10))
	f.Fuzz(func(t *testing.T, data []byte) {
		packed, _, err := payload(data)
		if err == nil && len(packed) > len(data) {
			t.Fatalf("got a payload of %d bytes in %d", len(packed), len(data))
		}
	})
}
