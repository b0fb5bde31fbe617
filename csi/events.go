package csi

import (
	"context"
	"regexp"

	"github.com/cleatproject/cleat/volume"
)

// deviceName is a device in an error of this machine, such as /dev/loop3, or
// (loop3) and "device loop3" of the kernel's messages.
var deviceName = regexp.MustCompile(`(/dev/|\(|device )(loop|rbd|nvme)[0-9][0-9n]*`)

// foldingError has the text without device names.
type foldingError struct {
	error
	text string
}

func (e *foldingError) Error() string { return e.text }

func (e *foldingError) Unwrap() error { return e.error }

// folding removes the names of devices from an error that the kubelet makes an
// event of: each attempt has another device, and only equal events fold. The log
// keeps the names.
func (s *Node) folding(ctx context.Context, id volume.ID, err error) error {
	if err == nil || !deviceName.MatchString(err.Error()) {
		return err
	}
	s.config.Logger.InfoContext(ctx, "device of a failed call", "volume", id, "err", err)
	text := deviceName.ReplaceAllStringFunc(err.Error(), func(name string) string {
		switch name[0] {
		case '/':
			return "its device"
		case '(':
			return "(device"
		}
		return "device"
	})
	return &foldingError{err, text}
}
