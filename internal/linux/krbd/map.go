package krbd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/libceph"
)

// Spec describes a map.
type Spec struct {
	libceph.Client
	// Owner begins the name of the map's key, which Device.Key returns, and random
	// letters end it: it distinguishes devices of several programs.
	Owner                  string
	Pool, Namespace, Image string
	ReadOnly               bool
}

// line returns the line for add_single_major.
func (s Spec) line(key string) string {
	options := s.Options(key)
	if s.Namespace != "" {
		options += ",_pool_ns=" + s.Namespace
	}
	if s.ReadOnly {
		options += "," + optionReadOnly
	}
	return strings.Join([]string{s.Addresses(), options, s.Pool, s.Image, noSnapshot}, " ")
}

const (
	optionReadOnly = "ro"
	noSnapshot     = "-"
)

// check rejects what would become other words or options of the line.
func (s Spec) check() error {
	if err := s.Check(); err != nil {
		return err
	}
	for _, w := range []struct {
		what, value string
		optional    bool
	}{{"pool", s.Pool, false}, {"namespace", s.Namespace, true}, {"image", s.Image, false}} {
		if w.value == "" && !w.optional {
			return errs.Errorf(errs.Invalid, "the %s is missing: an RBD image is mapped by user, pool and image", w.what)
		}
		if err := libceph.CheckName(w.what, w.value); err != nil {
			return err
		}
	}
	if s.Owner == "" || strings.ContainsFunc(s.Owner, func(r rune) bool { return r <= ' ' || r == 0x7f || r == ',' || r == 0xfffd }) {
		return errs.Errorf(errs.Internal, "the owner %s is not one word without commas", errs.Quote(s.Owner))
	}
	return nil
}

// Map maps an image as another device, even if it has one. It blocks until the
// cluster answers. NotFound: pool, namespace or image do not exist.
// Unauthenticated: the cluster refuses the key. Unavailable: no monitor answers.
func (k *Kernel) Map(ctx context.Context, s Spec) (Device, error) {
	if err := s.check(); err != nil {
		return Device{}, err
	}
	if err := k.ready(ctx); err != nil {
		return Device{}, err
	}
	key, err := s.KernelKey(s.Owner + rand.Text())
	if err != nil {
		return Device{}, err
	}
	if err := k.Write(ctx, k.bus("add_single_major"), s.line(key.Name), key); err != nil {
		return Device{}, s.explain(err)
	}
	all, err := k.List()
	if err != nil {
		return Device{}, err
	}
	for _, d := range all {
		if d.Key == key.Name {
			return d, nil
		}
	}
	return Device{}, errs.Errorf(errs.Internal, "the kernel mapped %s, but /sys/bus/rbd does not list its device", s.name())
}

func (s Spec) name() string {
	if s.Namespace != "" {
		return s.Pool + "/" + s.Namespace + "/" + s.Image
	}
	return s.Pool + "/" + s.Image
}

// explain gives the kernel's error numbers their meaning; the kernel log has
// details.
func (s Spec) explain(err error) error {
	if unusable := s.UnusableKey(err); unusable != nil {
		return fmt.Errorf("map %s: %w", s.name(), unusable)
	}
	for _, c := range []struct {
		is   []error
		kind errs.Kind
		text string
	}{
		{[]error{unix.ENOENT}, errs.NotFound, "the pool, the namespace or the image does not exist, or client." + s.User + " is not allowed to see it"},
		{[]error{unix.EACCES, unix.EPERM, unix.ENOKEY, unix.EKEYREJECTED}, errs.Unauthenticated, "the cluster refuses client." + s.User + ": check user and key, and its capabilities (mon \"allow r\", osd \"profile rbd pool=" + s.Pool + "\")"},
		{[]error{unix.ENXIO}, errs.Precondition, "the image has features that this kernel's RBD driver lacks: disable them with `rbd feature disable`, the kernel log names them"},
		{[]error{unix.EROFS}, errs.Precondition, "the image is locked exclusively by another client, or is the copy of a mirrored image that is not promoted"},
		{[]error{unix.ESHUTDOWN}, errs.Precondition, "this client is on the cluster's blocklist: it is fenced"},
		{[]error{unix.ETIMEDOUT, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ECONNREFUSED, unix.ECONNRESET, unix.EIO, unix.EINTR}, errs.Unavailable, "the monitors " + s.Addresses() + " do not answer"},
		{[]error{unix.EINVAL}, errs.Precondition, "the kernel refuses the image or an option, see the kernel log"},
		{[]error{unix.ENOSPC, unix.EDQUOT}, errs.Exhausted, "the pool is full"},
	} {
		for _, errno := range c.is {
			if errors.Is(err, errno) {
				return errs.Errorf(c.kind, "map %s: %s (%w)", s.name(), c.text, err)
			}
		}
	}
	return fmt.Errorf("map %s: %w", s.name(), err)
}
