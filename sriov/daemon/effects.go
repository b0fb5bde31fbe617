package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/host"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
)

const (
	// readBound is how long a look at the node may take.
	readBound = time.Minute
	// withdrawBound is how long a plugin may take; it is asked again after it.
	withdrawBound = time.Minute
	// maxPluginConfig is more than a ConfigMap can have, in bytes.
	maxPluginConfig = 4 << 20
)

// act does what the machine decided; what may wait runs on its own.
func (d *Daemon) act(ctx context.Context, action any) {
	switch a := action.(type) {
	case open:
		d.config.Gate.Enable(a.claim)
	case look:
		d.work.Go(func() { d.post(ctx, d.look(ctx)) })
	case withdraw:
		d.work.Go(func() { d.post(ctx, d.withdraw(ctx)) })
	case note:
		// Also at the end: what is done but not on record, the next process takes
		// back first.
		d.work.Go(func() { d.post(ctx, noted{save(context.WithoutCancel(ctx), d.config.Store, a.record)}) })
	case do:
		d.work.Go(func() { d.post(ctx, did{d.do(ctx, a.step)}) })
	}
}

func (d *Daemon) look(ctx context.Context) looked {
	ctx, cancel := context.WithTimeout(ctx, readBound)
	defer cancel()
	began := time.Now()
	var l looked
	// Asked before and after, since what a pod gets or gives up in between may be
	// seen changed.
	before := d.askPods(ctx)
	l.state, l.err = d.config.Host.Read(ctx)
	l.pods = d.askPods(ctx)
	l.pods.holders = union(before.holders, l.pods.holders)
	if incomplete, ok := errors.AsType[*host.Incomplete](l.err); ok {
		l.err = nil
		for _, p := range incomplete.Problems {
			l.partial = append(l.partial, fmt.Sprintf("%s: %v", p.What, p.Err))
		}
	}
	if l.err == nil {
		l.hash, l.err = hashOf(d.config.PluginConfig)
	}
	if l.err == nil {
		l.guids, l.err = readGUIDs(d.config.GUIDFile)
	}
	d.metrics.looks.Observe(time.Since(began).Seconds())
	return l
}

func (d *Daemon) askPods(ctx context.Context) podsSaid {
	if d.config.Pods == nil {
		return podsSaid{unasked: true}
	}
	var said podsSaid
	if said.offered, said.err = d.config.Pods.Offered(ctx); errors.Is(said.err, podresources.ErrUnsupported) {
		said.mute, said.err = true, nil
	}
	if said.err == nil {
		// After what is offered: what a pod gets in between is seen here.
		said.holders, said.err = d.config.Pods.Held(ctx)
	}
	return said
}

func union(a, b []podresources.Holder) []podresources.Holder {
	for _, h := range a {
		if !slices.Contains(b, h) {
			b = append(b, h)
		}
	}
	return b
}

// maxGUIDFile is more than all functions of a node need, in bytes.
const maxGUIDFile = 1 << 20

// readGUIDs reads the operator's file of static GUIDs, where there is one.
func readGUIDs(path string) ([]plan.GUIDPool, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the file of static GUIDs: %w", err)
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxGUIDFile))
	if err != nil {
		return nil, fmt.Errorf("the file of static GUIDs: %w", err)
	}
	pools, err := plan.ParseGUIDs(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return pools, nil
}

// hashOf is how the plugin names its configuration.
func hashOf(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("the plugin's configuration: %w", err)
	}
	defer func() { _ = file.Close() }()
	h := sha256.New()
	if n, err := io.Copy(h, io.LimitReader(file, maxPluginConfig+1)); err != nil {
		return "", fmt.Errorf("the plugin's configuration: %w", err)
	} else if n > maxPluginConfig {
		return "", fmt.Errorf("the plugin's configuration %s has more than %d bytes", path, maxPluginConfig)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func (d *Daemon) withdraw(ctx context.Context) withdrawn {
	ctx, cancel := context.WithTimeout(ctx, withdrawBound)
	defer cancel()
	began := time.Now()
	result, err := d.config.Gate.Disable(ctx)
	took := time.Since(began)
	d.metrics.withdrawals.Observe(took.Seconds())
	switch {
	case err != nil:
		d.config.Logger.Warn("the devices are not taken back", "duration", took, "error", err)
	case !result.Acknowledged:
		d.config.Logger.Warn("nobody acknowledges that the devices are taken back", "duration", took, "reason", result.Reason)
	default:
		d.config.Logger.Info("the devices are taken back", "duration", took, "confirmed", result.Confirmed, "in_use", len(result.InUse))
	}
	return withdrawn{result, err}
}

func (d *Daemon) do(ctx context.Context, s plan.Step) error {
	began := time.Now()
	err := d.config.Host.Do(ctx, s)
	took := time.Since(began)
	d.metrics.did(s, took, err)
	if err != nil {
		d.config.Logger.Error("a step failed", "step", s.String(), "function", s.Function(), "duration", took, "error", err)
		return err
	}
	d.config.Logger.Info("a step is done", "step", s.String(), "function", s.Function(), "duration", took)
	return nil
}
