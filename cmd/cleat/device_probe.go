package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/internal/cli"
)

// deviceProbe is the document of cleat device probe, in the words of the
// contract; the two sockets are ours.
type deviceProbe struct {
	Socket       string            `json:"socket"`
	Name         string            `json:"name"`
	Version      string            `json:"vendor_version"`
	Manifest     map[string]string `json:"manifest,omitempty"`
	Ready        bool              `json:"ready"`
	Capabilities []string          `json:"capabilities"`
	Provider     string            `json:"provider_name"`
	// SNAP is where the node driver looks for the SNAP process. Empty: the
	// plugin did not say.
	SNAP string `json:"snap_socket,omitempty"`
}

func newDeviceProbeCommand() *cobra.Command {
	var f deviceAsk
	var wait time.Duration
	c := &cobra.Command{
		Use:   "probe",
		Short: "Show which plugin answers, whether it is ready and what it can do",
		Long: `Asks what the node driver asks before each attachment, in its order: who the
plugin is, whether it is ready, what it announces, and which SNAP process its
devices are in. It ends with 0 only when the plugin is ready and answers all of
that. --wait asks until it is so.`,
		Example: `  cleat device probe
  cleat device probe --plugin-name my-vendor --wait 1m
  cleat device probe -o json | jq -r .snap_socket`,
		Args: exactlyNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return fmt.Errorf("--wait %s is negative; leave it out to ask once", wait)
			}
			socket, err := f.bind()
			if err != nil {
				return err
			}
			bound := f.timeout
			if wait > 0 {
				bound = wait
			}
			var found *deviceProbe
			failed := f.session(cmd, "asking the plugin", bound, func(ctx context.Context, notice func(string)) (err error) {
				if wait == 0 {
					found, err = probeDevices(ctx, socket)
					return explainDevice(err)
				}
				found, err = awaitDevices(ctx, socket, notice)
				return explainDevice(err)
			})
			if found == nil {
				return failed
			}
			return errors.Join(f.print(cmd, found.table(), found), failed)
		},
	}
	f.add(c)
	c.Flags().DurationVar(&wait, "wait", 0, "ask until the plugin is ready, for at most this time, which then counts instead of --timeout")
	return c
}

// errNotReady: the plugin answers and cannot be used yet.
var errNotReady = errors.New("the plugin is not ready: it still starts, or does not reach SNAP; its log says which. --wait 1m waits for it")

var errReadyUnset = errors.New("the plugin does not say whether it is ready (ProbeResponse.ready is unset), which the node driver takes for not ready")

// probeDevices asks once. What it found by then is there beside an error, or nil
// when it is not even known who answers.
func probeDevices(ctx context.Context, socket string) (*deviceProbe, error) {
	c, err := client.Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }() // what it says is told by then
	info, err := c.Info(ctx)
	if err != nil {
		return nil, err
	}
	d := &deviceProbe{Socket: c.Socket(), Name: info.Name, Version: info.Version, Manifest: info.Manifest, Capabilities: []string{}}
	ready, told, err := c.Probe(ctx)
	switch {
	case err != nil:
		return d, err
	case !told:
		return d, errReadyUnset
	case !ready:
		return d, errNotReady
	}
	d.Ready = true
	can, err := c.Capabilities(ctx)
	if err != nil {
		return d, err
	}
	d.Capabilities = append(d.Capabilities, can.All...)
	if d.Provider, err = c.Provider(ctx); err == nil {
		d.SNAP = filepath.Join(snapDir, "providers", d.Provider, "snap.sock")
	}
	return d, err
}

// awaitDevices asks until all is well, or nothing that may change by itself is
// in the way.
func awaitDevices(ctx context.Context, socket string, notice func(string)) (*deviceProbe, error) {
	begun, told := time.Now(), ""
	var last *deviceProbe
	var why error
	for {
		d, err := probeDevices(ctx, socket)
		if err == nil {
			return d, nil
		}
		if ctx.Err() == nil || why == nil {
			last, why = d, err // tells more than that time ran out
		}
		if ctx.Err() == nil && !mayGetReady(err) {
			return d, err
		}
		if news := why.Error(); news != told && time.Since(begun) > patience && ctx.Err() == nil {
			notice(news + "; trying again")
			told = news
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return last, fmt.Errorf("%w (gave up after %s: %w)", why, time.Since(begun).Round(100*time.Millisecond), ctx.Err())
		}
	}
}

// mayGetReady tells what waiting may mend.
func mayGetReady(err error) bool {
	if errors.Is(err, errNotReady) {
		return true
	}
	_, known := errors.AsType[*client.Error](err)
	return known && !errors.Is(err, fs.ErrPermission) && status.Code(err) != codes.Unimplemented
}

func (d *deviceProbe) table() cli.Table {
	snap := d.SNAP
	if d.SNAP != "" && d.Provider == "" {
		snap += " (today's node driver skips SNAP's part of a detachment when the provider is empty)"
	}
	t := cli.Table{Header: []string{"PLUGIN", d.Name}, Rows: [][]string{
		{"Version", d.Version},
		{"Socket", d.Socket},
		{"Ready", yes(d.Ready)},
		{"Announces", strings.Join(d.Capabilities, ", ")},
		{"SNAP provider", d.Provider},
		{"SNAP socket", snap},
	}}
	for _, key := range slices.Sorted(maps.Keys(d.Manifest)) {
		t.Rows = append(t.Rows, []string{"manifest/" + key, d.Manifest[key]})
	}
	return t
}
