package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/fstrim"
	"github.com/cleatproject/cleat/volume"
)

func newVolumeAttachCommand(f *driverFlags) *cobra.Command {
	var use useFlags
	var readOnly bool
	c := &cobra.Command{
		Use:   "attach VOLUME PATH",
		Short: "Attach a volume: mount it, or publish its block device at a path",
		Long: `Publishes a volume to this node, stages it and publishes it at PATH: a mounted
directory, or a device file for a block volume. PATH must not exist, or be an empty
directory. The command is idempotent: repeat it to mount the volume after a reboot.`,
		Example: `  cleat volume attach data /mnt
  cleat volume attach disk /dev/shm/disk --block
  cleat volume attach data /srv/read --read-only`,
	}
	use.add(c.Flags())
	c.Flags().BoolVar(&readOnly, "read-only", false, "publish the volume read-only at this path")
	c.RunE = f.runE("attaching the volume", func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error) {
		target, err := filepath.Abs(args[1])
		if err != nil {
			return nil, nil, err
		}
		known, err := d.Show(ctx, args[0])
		if err != nil {
			return nil, nil, err
		}
		v, err := d.Attach(ctx, client.AttachRequest{
			Volume: args[0], Target: target, ReadOnly: readOnly, Capability: use.override(&known.Capability, c.Flags()),
		})
		return cli.Textf("volume %s is attached at %s", v.Name, target), v, err
	})
	return c
}

func newVolumeDetachCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "detach VOLUME|PATH [PATH]",
		Short: "Detach a volume from all paths, or from one",
		Long: `Unpublishes a volume from one path, or from all paths of this machine and then
unstages it. A volume in use is refused; nothing is forced.`,
		Example: `  cleat volume detach data
  cleat volume detach /mnt`,
		RunE: f.runE("detaching the volume", func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error) {
			name := args[0]
			path, err := filepath.Abs(args[len(args)-1])
			if err != nil {
				return nil, nil, err
			}
			if len(args) == 1 { // a name or a path
				at, err := d.At(ctx, path)
				switch {
				case strings.Contains(name, "/") && err == nil:
					name = at.ID // foreign volumes are found only by ID after the detach
				case filepath.IsAbs(name):
					return nil, nil, err
				default:
					path = ""
				}
			}
			if err := d.Detach(ctx, name, path); err != nil {
				return nil, nil, err
			}
			v, err := d.Show(ctx, name)
			text := cli.Textf("volume %s is detached", v.Name)
			if len(v.Targets) > 0 {
				text = cli.Textf("volume %s is detached from %s, still attached at %s", v.Name, path, targetPaths(v))
			}
			return text, v, err
		}),
	}
}

func newVolumeTrimCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "trim VOLUME",
		Short: "Discard the free blocks of a mounted volume (fstrim)",
		Long: `Discards the blocks that the file system does not use, to return the space of
deleted files in a thin volume to the pool.`,
		Example: `  cleat volume trim data`,
		RunE: f.runE("trimming the volume", func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error) {
			v, err := d.Show(ctx, args[0])
			if err != nil {
				return nil, nil, err
			}
			path, err := trimPath(v)
			if err != nil {
				return nil, nil, err
			}
			bytes, err := fstrim.Trim(ctx, path)
			return cli.Textf("volume %s: %s of free space trimmed", v.Name, cli.HumanBytes(bytes)),
				map[string]any{"name": v.Name, "path": path, "trimmedBytes": bytes}, err
		}),
	}
}

func trimPath(v client.Volume) (string, error) {
	if v.Capability.Block {
		return "", fmt.Errorf("volume %s is a block device, whose free blocks only its user knows: run blkdiscard, or fstrim on its file system", v.Name)
	}
	for _, t := range v.Targets {
		if t.Published && !t.ReadOnly {
			return t.Path, nil
		}
	}
	return "", fmt.Errorf("volume %s is not attached read-write: attach it first", v.Name)
}

func newVolumeStatsCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "stats VOLUME",
		Short:   "Show the capacity and usage of an attached volume",
		Example: `  cleat volume stats data`,
		RunE: f.runE("measuring the volume", func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error) {
			all, err := d.Stats(ctx, args[0])
			t := cli.Table{Header: []string{"OF", "TOTAL", "USED", "AVAILABLE", "USED %"}}
			for _, u := range all {
				share := ""
				if u.Total > 0 {
					share = fmt.Sprintf("%.0f", 100*float64(u.Used)/float64(u.Total))
				}
				if u.Unit == "BYTES" {
					t.Add(u.Unit, cli.HumanBytes(u.Total), cli.HumanBytes(u.Used), cli.HumanBytes(u.Available), share)
				} else {
					t.Add(u.Unit, u.Total, u.Used, u.Available, share)
				}
			}
			return t, all, err
		}),
	}
}

func newVolumeHealthCommand(f *driverFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "health [VOLUME]",
		Short: "Show the health of a volume, or of the storage",
		Long: `Shows the adverse conditions that the driver reports for a volume, or without
VOLUME for the storage as seen by this node.`,
		Example: `  cleat volume health data
  cleat volume health`,
		RunE: f.runE("checking health", func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error) {
			whose := "the storage"
			var found []volume.Condition
			var err error
			if len(args) == 1 {
				whose = "volume " + args[0]
				found, err = d.Health(ctx, args[0])
			} else {
				found, err = d.StorageHealth(ctx)
			}
			if len(found) == 0 {
				return cli.Textf("%s is healthy", whose), found, err
			}
			t := cli.Table{Header: []string{"SEVERITY", "REASON", "MESSAGE"}}
			for _, c := range found {
				t.Add(c.Severity, c.Reason, c.Message)
			}
			return t, found, err
		}),
	}
}
