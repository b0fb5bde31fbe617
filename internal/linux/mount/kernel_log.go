package mount

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const maxMessages = 8

// kernelLog reads messages about one device: most file systems report the
// reason of a failed mount only there. It is empty without permission.
type kernelLog struct {
	fd     int
	device string // such as loop3
}

func openKernelLog(device string) *kernelLog {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return &kernelLog{fd: -1}
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		unix.Close(fd)
		return &kernelLog{fd: -1}
	}
	return &kernelLog{fd: fd, device: device}
}

func (l *kernelLog) close() {
	if l.fd >= 0 {
		unix.Close(l.fd)
	}
}

func (l *kernelLog) since() []string {
	var all []string
	buffer := make([]byte, 8192) // one record per read
	for l.fd >= 0 && len(all) < maxMessages {
		n, err := unix.Read(l.fd, buffer)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EPIPE) {
			continue // EPIPE: records were overwritten meanwhile
		}
		if err != nil || n <= 0 {
			break // EAGAIN: no more records
		}
		text := recordText(string(buffer[:n]))
		if mentions(text, l.device) && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// recordText parses "6,1234,5678,-;message\n KEY=value\n".
func recordText(record string) string {
	_, text, _ := strings.Cut(record, ";")
	text, _, _ = strings.Cut(text, "\n")
	return strings.TrimSpace(text)
}

// mentions looks for a word, such as in "(loop3)", "(device loop3)" or
// "/dev/loop3", but not "loop31".
func mentions(text, device string) bool {
	return slices.Contains(strings.FieldsFunc(text, func(r rune) bool {
		return strings.ContainsRune(" ()/:,[]'\"", r)
	}), device)
}
