// Command run boots a test guest by hand: with a shell on its console, or for
// one command. With -prepare it only downloads and unpacks the guests' images.
// See CONTRIBUTING.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	log := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	if slices.Equal(args, []string{"-prepare"}) {
		return prepare(ctx, log)
	}
	scratch, err := os.MkdirTemp("", "vm-run-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	spec, command, err := parse(args, scratch)
	if err != nil {
		return err
	}
	g, err := vm.Launch(ctx, spec, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if len(command) > 0 {
		out, err := g.Run(ctx, command...)
		fmt.Print(out)
		return err
	}
	if err := g.Shell(ctx); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "type 'poweroff -f' to end the guest")
	select {
	case <-g.Done():
	case <-ctx.Done():
	}
	return nil
}

// prepare downloads and unpacks kernels, emulators and tools.
func prepare(ctx context.Context, log func(format string, args ...any)) error {
	dir, err := image.DefaultDir()
	if err != nil {
		return err
	}
	store, err := image.Open(dir, log)
	if err != nil {
		return err
	}
	for _, source := range []image.Source{image.Stable, image.Backports, image.Testing} {
		_, err := store.Guest(ctx, image.Recipe{Kernel: source, Programs: image.Filesystems()})
		if err == nil && source != image.Testing { // which has no QEMU here
			_, err = store.Emulator(ctx, source)
		}
		if err != nil && !errors.Is(err, image.ErrNoSource) {
			return err
		}
	}
	return nil
}

// parse parses the command line. Disks are created in scratch.
func parse(args []string, scratch string) (vm.Spec, []string, error) {
	spec := vm.Spec{Name: "run", Lifetime: 8 * time.Hour}
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "Boot a test guest, with a shell or for one command.\n\nUsage:\n       go run ./test/vm/run [flags] [command...]\n       go run ./test/vm/run -prepare\n\nExample:\n       go run ./test/vm/run -disk 400 lsblk\n\nFlags:")
		flags.PrintDefaults()
	}
	kernel := flags.String("kernel", string(image.Stable), "Debian suite of the kernel: stable, backports or testing")
	emulator := flags.String("emulator", string(image.Stable), "Debian suite of QEMU: stable or backports")
	flags.IntVar(&spec.Memory, "memory", 1024, "memory in MiB")
	flags.IntVar(&spec.Processors, "processors", 1, "number of processors")
	modules := flags.String("modules", "ext4,xfs,loop", "kernel modules to load, separated by commas")
	flags.Func("disk", "size of a disk in MiB; can be repeated", func(text string) error {
		size, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return err
		}
		disk, err := vm.RawFile(filepath.Join(scratch, "disk"+strconv.Itoa(len(spec.Disks))), size<<20)
		spec.Disks = append(spec.Disks, disk)
		return err
	})
	flags.Func("program", "static program to copy to the guest's /usr/bin; can be repeated", func(path string) error {
		spec.Programs = append(spec.Programs, path)
		return nil
	})
	igb := flags.Bool("igb", false, "add a network card with virtual functions; needs -emulator backports")
	if err := flags.Parse(args); err != nil {
		return vm.Spec{}, nil, err
	}
	spec.Kernel, spec.Emulator = image.Source(*kernel), image.Source(*emulator)
	spec.Modules = strings.FieldsFunc(*modules, func(r rune) bool { return r == ',' })
	spec.Extra = []string{"btrfs"}
	spec.Tools = image.Filesystems()
	if *igb {
		spec.Devices = vm.IGB(1)
		spec.Modules = append(spec.Modules, "igb", "igbvf")
	}
	spec.Terminal = flags.NArg() == 0
	return spec, flags.Args(), nil
}
