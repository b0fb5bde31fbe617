package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/kubelet/remote"
	"github.com/cleatproject/cleat/kubelet/watch"
)

const (
	// driverName and driverType are what the driver registers as.
	driverName = "csi.cleat.dev"
	driverType = "CSIPlugin"
)

// startHost starts the host of plugins, which knows nobody yet.
func startHost(ctx context.Context, w *walk) (string, error) {
	if err := w.startHost(); err != nil {
		return "", err
	}
	// It can be asked when its socket is there, and has looked by then.
	err := retry.For(ctx, startBound, func() (bool, error) {
		all, err := w.known(ctx)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("the directory is new, and the host already knows of %+v", all)
		}
		return errors.Is(err, remote.ErrNoHost), err
	})
	return "it watches " + w.plugins(), err
}

func start(ctx context.Context, w *walk) (string, error) {
	if err := w.startDriver(); err != nil {
		return "", err
	}
	driver, err := w.dial(ctx, w.endpoint())
	if err != nil {
		return "", err
	}
	info := driver.Info()
	w.about = info.Name + " " + info.Version
	return fmt.Sprintf("%s serves a pool of %s, and announces %d capabilities", w.about, cli.HumanBytes(w.config.Size),
		len(info.Plugin)+len(info.Controller)+len(info.Group)+len(info.NodeRPCs)), driver.Close()
}

// register waits until the host has registered the driver, and connects to
// where the host says that the driver of this name is.
func register(ctx context.Context, w *walk) (string, error) {
	p, err := w.awaitRegistered(ctx, time.Time{})
	if err != nil {
		return "", err
	}
	h, err := remote.Dial(ctx, w.hostEndpoint())
	if err != nil {
		return "", err
	}
	found, err := h.Lookup(ctx, driverType, driverName)
	if err := errors.Join(err, h.Close()); err != nil {
		return "", err
	}
	if found.Socket != w.registration() || "unix://"+found.Endpoint != w.endpoint() {
		return "", fmt.Errorf("the host says that %s is %+v, it should serve on %s", driverName, found, w.endpoint())
	}
	if w.client, err = w.dial(ctx, found.Endpoint); err != nil {
		return "", err
	}
	capacity, err := w.client.Capacity(ctx, *xfs(), thick())
	w.free = capacity.Available
	return fmt.Sprintf("registered as %s %s after its socket was seen", p.Type, short(p.Since.Sub(p.Found))), err
}

// known asks the host which plugins it knows.
func (w *walk) known(ctx context.Context) ([]watch.Status, error) {
	h, err := remote.Dial(ctx, w.hostEndpoint())
	if err != nil {
		return nil, err
	}
	all, err := h.List(ctx, "", "")
	return all, errors.Join(err, h.Close())
}

// awaitRegistered waits until the host has registered the driver after a
// moment.
func (w *walk) awaitRegistered(ctx context.Context, after time.Time) (watch.Status, error) {
	return w.await(ctx, func(p watch.Status, there bool) bool {
		return there && p.Phase == watch.Registered && p.Since.After(after)
	})
}

// awaitForgotten waits until the host knows no such driver.
func (w *walk) awaitForgotten(ctx context.Context) error {
	_, err := w.await(ctx, func(_ watch.Status, there bool) bool { return !there })
	return err
}

// await follows the host until what it knows of the driver is as wanted.
func (w *walk) await(ctx context.Context, wanted func(p watch.Status, there bool) bool) (watch.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	h, err := remote.Dial(ctx, w.hostEndpoint())
	if err != nil {
		return watch.Status{}, err
	}
	defer h.Close()
	var p watch.Status
	there, synced := false, false
	for c, err := range h.Watch(ctx) {
		if err != nil {
			return p, fmt.Errorf("the driver's registration is not as it should be (%+v): %w", p, err)
		}
		switch {
		case c.Kind == remote.Restart:
			there, synced = false, false
		case c.Kind == remote.Synced:
			synced = true
		case c.Plugin.Socket == w.registration():
			p, there = *c.Plugin, c.Kind == remote.Present
		}
		if synced && wanted(p, there) {
			return p, nil
		}
	}
	return p, ctx.Err()
}
