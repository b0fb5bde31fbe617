package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/fstrim"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

func newVolumeAttachCommand(f *driverFlags) *cobra.Command {
	var use useFlags
	var readOnly bool
	var contexts []string
	c := &cobra.Command{
		Use:   "attach VOLUME PATH",
		Short: "Attach a volume: mount it, or publish its block device at a path",
		Long: `Publishes a volume to this node, stages it and publishes it at PATH: a mounted
directory, or a device file for a block volume. PATH must not exist, or be an empty
directory. The command is idempotent: repeat it to mount the volume after a reboot.

With --context it attaches a static volume, which the driver did not create: VOLUME
is an ID of your choice, and the context says where the volume is (volumeAttributes
of a PersistentVolume). cleat csi --engine none serves such volumes. Keys are
refused: name a file in the driver's --nvme-key-dir.`,
		Example: `  cleat volume attach data /mnt
  cleat volume attach disk /dev/shm/disk --block
  cleat volume attach data /srv/read --read-only
  cleat volume attach disk /srv/disk --context targetAddr=192.0.2.10 --context nqn=nqn.2024-01.com.example:vol1
  cleat volume attach disk /srv/disk --context disk.yaml`,
	}
	use.add(c.Flags())
	c.Flags().BoolVar(&readOnly, "read-only", false, "publish the volume read-only at this path")
	c.Flags().StringArrayVar(&contexts, "context", nil, "KEY=VALUE of the volume_context of a static volume, or a YAML file with such keys (- reads standard input); can be repeated")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		volumeContext, err := readVolumeContext(cmd.InOrStdin(), contexts)
		if err != nil {
			return err
		}
		return f.runE("attaching the volume", func(ctx context.Context, d *client.Driver, args []string) (cli.View, any, error) {
			req := client.AttachRequest{Volume: args[0], ReadOnly: readOnly, Context: volumeContext}
			if req.Target, err = filepath.Abs(args[1]); err != nil {
				return nil, nil, err
			}
			var known client.Volume
			if volumeContext == nil {
				if known, err = d.Show(ctx, args[0]); err != nil {
					return nil, nil, err
				}
			}
			req.Capability = use.override(&known.Capability, c.Flags())
			v, err := d.Attach(ctx, req)
			return cli.Textf("volume %s is attached at %s", v.Name, req.Target), v, err
		})(cmd, args)
	}
	return c
}

// readVolumeContext returns nil without arguments. Errors contain no values,
// which can be secrets: drivers log contexts, and the client stores them.
func readVolumeContext(stdin io.Reader, args []string) (map[string]string, error) {
	var all map[string]string
	for _, arg := range args {
		more := map[string]string{}
		if key, value, isPair := strings.Cut(arg, "="); isPair {
			more[key] = value
		} else if err := readContextFile(stdin, arg, &more); err != nil {
			return nil, fmt.Errorf("--context %s: %w", access.Quote(arg), err)
		}
		for key, value := range more {
			_, twice := all[key]
			switch {
			case access.HoldsSecret(key, value) && access.LooksSecret(key):
				return nil, errors.New("--context: a name looks like a key (not shown); nothing was sent. Store the key in a file of the driver's key directory (cleat csi --nvme-key-dir), and set the name of that file")
			case access.HoldsSecret(key, value):
				return nil, fmt.Errorf("--context %s: the value looks like a key, or is not the name of one (not shown); nothing was sent. Store the key in a file of the driver's key directory (cleat csi --nvme-key-dir), and set the name of that file", key)
			case key == "":
				return nil, errors.New("--context expects KEY=VALUE, for example targetAddr=192.0.2.10, or a file")
			case twice:
				return nil, fmt.Errorf("--context %s is set twice", key)
			}
			if all == nil {
				all = map[string]string{}
			}
			all[key] = value
		}
	}
	return all, nil
}

func readContextFile(stdin io.Reader, from string, into *map[string]string) error {
	text, err := cli.ReadInput(stdin, from, maxContextFile)
	if err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil { // its text can contain a secret
		return errors.New("invalid YAML: a map with unique keys and plain values is expected, such as targetAddr: 192.0.2.10")
	}
	return nil
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
			if errors.Is(err, errs.NotFound) || errors.Is(err, errs.Unsupported) { // a static volume, of which only the attachment was known
				v, err = client.Volume{Object: client.Object{ID: name, Name: name, Driver: d.Info().Name, State: client.StateForeign}}, nil
			}
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
			path, err := trimPath(ctx, v)
			if err != nil {
				return nil, nil, err
			}
			bytes, err := fstrim.Trim(ctx, path)
			return cli.Textf("volume %s: %s of free space trimmed", v.Name, cli.HumanBytes(bytes)),
				map[string]any{"name": v.Name, "path": path, "trimmedBytes": bytes}, err
		}),
	}
}

// trimPath returns where the volume's own file system is mounted. A driver can
// publish a directory of a larger one, such as that of the machine.
func trimPath(ctx context.Context, v client.Volume) (string, error) {
	if v.Capability.Block {
		return "", fmt.Errorf("volume %s is a block device, whose free blocks only its user knows: run blkdiscard, or fstrim on its file system", v.Name)
	}
	for _, t := range v.Targets {
		if !t.Published || t.ReadOnly {
			continue
		}
		e, mounted, err := mount.At(ctx, t.Path)
		switch {
		case err != nil:
			return "", err
		case !mounted:
			return "", fmt.Errorf("nothing is mounted at %s, so that the file system there is not that of volume %s: attach it again", t.Path, v.Name)
		case e.Root != "/":
			return "", fmt.Errorf("volume %s is the directory %s of the %s file system on %s, which other data shares: trim that file system instead (fstrim)", v.Name, e.Root, e.FSType, e.Source)
		}
		return t.Path, nil
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
