package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
)

// deviceProbe has the contract's field names and two sockets.
type deviceProbe struct {
	Socket       string            `json:"socket"`
	Name         string            `json:"name"`
	Version      string            `json:"vendor_version"`
	Manifest     map[string]string `json:"manifest,omitempty"`
	Ready        bool              `json:"ready"`
	Capabilities []string          `json:"capabilities"`
	Provider     string            `json:"provider_name"`
	// SNAP is where the node driver expects the SNAP process; empty if
	// GetSNAPProvider failed.
	SNAP string `json:"snap_socket,omitempty"`
}

func newDeviceProbeCommand() *cobra.Command {
	var f deviceFlags
	var wait time.Duration
	c := &cobra.Command{
		Use:   "probe",
		Short: "Show a plugin's identity, readiness and capabilities",
		Long: `Makes the calls of the node driver before each attachment: identity, readiness,
capabilities and SNAP provider. It exits with 0 only if the plugin is ready and all
calls succeed.`,
		Example: `  cleat device probe
  cleat device probe --plugin-name my-vendor --wait 1m
  cleat device probe -o json | jq -r .snap_socket`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return fmt.Errorf("--wait %s is negative: omit the flag to probe once", wait)
			}
			if err := f.bind(); err != nil {
				return err
			}
			if wait > 0 {
				f.timeout, f.starting = wait, wait
			}
			var found *deviceProbe
			failed := f.run(cmd, "probing the plugin", func(ctx context.Context, notice func(string)) error {
				notReady := func(err error) bool { return wait > 0 && canBecomeReady(err) }
				err := f.untilServed(ctx, notice, notReady, func(ctx context.Context) error {
					c, err := client.Dial(ctx, f.socket)
					if err != nil {
						return err
					}
					now, _, err := devicePlugin{c, notice}.probe(ctx)
					if ctx.Err() == nil || found == nil {
						found = now
					}
					return errors.Join(err, c.Close())
				})
				return explainDevice(err)
			})
			if found == nil {
				return failed
			}
			return errors.Join(f.printResult(cmd, found.table(), found, nil), failed)
		},
	}
	f.addTo(c)
	c.Flags().DurationVar(&wait, "wait", 0, "wait until the plugin is ready, at most for this time; replaces --timeout")
	return c
}

var (
	errNotReady   = errs.Errorf(errs.Unavailable, "the plugin is not ready: it is starting, or cannot reach SNAP (see its log). Wait with: cleat device probe --wait 1m")
	errReadyUnset = errors.New("the plugin does not report its readiness (ProbeResponse.ready is unset), which the node driver treats as not ready")
)

// probe makes the calls once. On an error the document has the results so far,
// or is nil.
func (p devicePlugin) probe(ctx context.Context) (d *deviceProbe, can client.Capabilities, err error) {
	info, err := p.Info(ctx)
	if err != nil {
		return nil, can, err
	}
	d = &deviceProbe{Socket: p.Socket(), Name: info.Name, Version: info.Version, Manifest: info.Manifest, Capabilities: []string{}}
	ready, reported, err := p.Probe(ctx)
	switch {
	case err != nil:
		return d, can, err
	case !reported:
		return d, can, errReadyUnset
	case !ready:
		return d, can, errNotReady
	}
	d.Ready = true
	if can, err = p.Capabilities(ctx); err != nil {
		return d, can, err
	}
	d.Capabilities = append(d.Capabilities, can.All...)
	if d.Provider, err = p.Provider(ctx); err == nil {
		d.SNAP = filepath.Join(snapDir, "providers", d.Provider, "snap.sock")
	}
	return d, can, err
}

func canBecomeReady(err error) bool {
	if errors.Is(err, errNotReady) {
		return true
	}
	_, known := errors.AsType[*client.Error](err)
	return known && !errors.Is(err, fs.ErrPermission) && status.Code(err) != codes.Unimplemented
}

func (d *deviceProbe) table() cli.Table {
	snap := d.SNAP
	if d.SNAP != "" && d.Provider == "" {
		snap += " (current node drivers skip the detachment in SNAP if the provider is empty)"
	}
	t := cli.Table{Header: []string{"PLUGIN", d.Name}}
	t.Add("Version", d.Version)
	t.Add("Socket", d.Socket)
	t.Add("Ready", d.Ready)
	t.Add("Announces", d.Capabilities)
	t.Add("SNAP provider", d.Provider)
	t.Add("SNAP socket", snap)
	for _, key := range slices.Sorted(maps.Keys(d.Manifest)) {
		t.Add("manifest/"+key, d.Manifest[key])
	}
	return t
}
