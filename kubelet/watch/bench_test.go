package watch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// crowd is a set of plugins in the process of the host, each with its own gRPC
// server. They serve under hidden names until show.
type crowd struct {
	dir     string
	plugins []*plugin

	first    atomic.Int64 // GetInfo, in nanoseconds since
	begun    time.Time
	notified sync.WaitGroup // one for each plugin to notify
}

func newCrowd(b *testing.B, dir string, n int) *crowd {
	c := &crowd{dir: dir, begun: time.Now()}
	testkit.Must(b, os.MkdirAll(dir, 0o750))
	for i := range n {
		c.plugins = append(c.plugins, newPlugin(b, filepath.Join(dir, fmt.Sprintf(".%d", i)), "T", fmt.Sprint("n", i), func(p *plugin) {
			p.info = func(context.Context) (*registration.PluginInfo, error) {
				c.first.CompareAndSwap(0, int64(time.Since(c.begun)))
				return &registration.PluginInfo{Type: "T", Name: fmt.Sprint("n", i)}, nil
			}
			p.notify = func(context.Context, *registration.RegistrationStatus) error { c.notified.Done(); return nil }
		}))
	}
	return c
}

func (c *crowd) show(b *testing.B) {
	for i, p := range c.plugins {
		testkit.Must(b, os.Rename(p.path, filepath.Join(c.dir, fmt.Sprint(i))))
	}
}

func (c *crowd) hide(b *testing.B) {
	for i, p := range c.plugins {
		testkit.Must(b, os.Rename(filepath.Join(c.dir, fmt.Sprint(i)), p.path))
	}
}

type counting struct{ registered, deregistered chan Plugin }

func (c counting) Validate(context.Context, Plugin) error { return nil }
func (c counting) Register(_ context.Context, p Plugin) error {
	c.registered <- p
	return nil
}
func (c counting) DeRegister(_ context.Context, p Plugin) error {
	c.deregistered <- p
	return nil
}

func benchHost(b *testing.B, dir string, capacity int) (*Host, counting) {
	c := counting{make(chan Plugin, capacity), make(chan Plugin, capacity)}
	h, err := New(Options{Dir: dir, Handlers: map[string]Handler{"T": c}})
	testkit.Must(b, err, h.Start(b.Context()))
	b.Cleanup(func() { testkit.Must(b, h.Close(context.Background(), false)) })
	return h, c
}

// BenchmarkBindToRegister measures one plugin, from bind to the handler's
// Register.
func BenchmarkBindToRegister(b *testing.B) {
	dir := testkit.Dir(b)
	_, c := benchHost(b, dir, 1)
	for i := range b.N {
		path := filepath.Join(dir, fmt.Sprint(i%10))
		b.StartTimer()
		p := newPlugin(b, path, "T", "n", nil)
		<-c.registered
		b.StopTimer()
		testkit.Must(b, os.Remove(path))
		<-c.deregistered
		p.kill()
	}
}

func cpu() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAtOnce measures a thousand plugins that appear together. The CPU
// time includes the plugins.
func BenchmarkAtOnce(b *testing.B) {
	for _, n := range []int{1000, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			dir := testkit.Dir(b)
			crowd := newCrowd(b, dir, n)
			_, c := benchHost(b, dir, n)
			var work, used time.Duration
			peak := 0
			for b.Loop() {
				crowd.first.Store(0)
				crowd.notified.Add(n)
				before := cpu()
				crowd.show(b)
				for range n {
					<-c.registered
					peak = max(peak, runtime.NumGoroutine())
				}
				crowd.notified.Wait()
				work += time.Since(crowd.begun) - time.Duration(crowd.first.Load())
				used += cpu() - before
				crowd.hide(b)
				for range n {
					<-c.deregistered
				}
			}
			b.ReportMetric(float64(work.Milliseconds())/float64(b.N), "ms-GetInfo-to-last-Notify")
			b.ReportMetric(float64(used.Milliseconds())/float64(b.N), "ms-CPU")
			b.ReportMetric(float64(peak), "goroutines")
		})
	}
}

// BenchmarkIdle measures the cost of a host with a thousand registered plugins.
func BenchmarkIdle(b *testing.B) {
	const n = 1000
	dir := testkit.Dir(b)
	crowd := newCrowd(b, dir, n)
	_, c := benchHost(b, dir, n)
	crowd.notified.Add(n)
	crowd.show(b)
	for range n {
		<-c.registered
	}
	time.Sleep(time.Second)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	used := cpu()
	for b.Loop() {
		time.Sleep(time.Second)
	}
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64((cpu()-used).Microseconds())/float64(b.N), "µs-CPU/s")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N), "B-allocated/s")
}

// BenchmarkBesideSilentSockets measures four plugins beside 2,000 sockets that
// accept and send nothing: all present at the start, and plugins that appear
// during the retries of the others.
func BenchmarkBesideSilentSockets(b *testing.B) {
	const plugins = 4
	begin := func(b *testing.B, show bool) (*crowd, counting, time.Time) {
		dir := testkit.Dir(b)
		for i := range 2000 {
			listen(b, filepath.Join(dir, fmt.Sprint("silent", i)))
		}
		crowd := newCrowd(b, dir, plugins)
		crowd.notified.Add(plugins)
		if show {
			crowd.show(b)
		}
		begun := time.Now()
		_, c := benchHost(b, dir, plugins)
		return crowd, c, begun
	}
	await := func(b *testing.B, c counting, begun time.Time) {
		for i := range plugins {
			<-c.registered
			if i == 0 {
				b.ReportMetric(float64(time.Since(begun).Microseconds())/1e3, "ms-first")
			}
		}
		b.ReportMetric(float64(time.Since(begun).Microseconds())/1e3, "ms-last")
	}
	b.Run("at start", func(b *testing.B) {
		_, c, begun := begin(b, true)
		await(b, c, begun)
	})
	b.Run("during retries", func(b *testing.B) {
		crowd, c, _ := begin(b, false)
		time.Sleep(12 * time.Second)
		begun := time.Now()
		crowd.show(b)
		await(b, c, begun)
	})
}
