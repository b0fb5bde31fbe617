package nvme

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/internal/durable"
	"github.com/cleatproject/cleat/internal/linux/kmsg"
	kernel "github.com/cleatproject/cleat/internal/linux/nvme"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume/access"
)

// With native multipath, Linux answers a flush without data with success if the
// connection breaks under it: nvme_failover_req moves the bios of the request to
// another path, and such a flush has none. The data is lost if the target loses
// its volatile cache then. The host cannot repair this: the volume gets a
// condition.
//
// sysfs does not count broken connections; the kernel's log has them. It is read
// every few seconds, and at the start from where the last process stopped.

// interruption is a broken connection in the log.
type interruption struct {
	seq  uint64
	nqn  string
	text string
}

// interrupted returns the interruptions in messages. names are the subsystems of
// controllers whose connection is older than the messages, and is updated, as is
// isConnected: those that have been live. A reset of such a controller
// (reset_controller in sysfs) logs only that its queues are created again.
func interrupted(records []kmsg.Record, names map[string]string, isConnected map[string]bool) (all []interruption) {
	for _, r := range records {
		name, message, found := splitDevice(r.Text)
		if !found {
			continue
		}
		if _, rest, found := strings.Cut(message, `new ctrl: NQN "`); found { // the last message of a connect
			names[name], _, _ = strings.Cut(rest, `"`)
			isConnected[name] = true
			continue
		}
		signs := []string{"starting error recovery", "resetting controller", "Reconnecting in", "Removing ctrl", "Removing controller"}
		if isConnected[name] {
			signs = append(signs, "I/O queues")
		}
		if strings.Contains(message, "Removing ctrl") {
			delete(isConnected, name) // its name can be used again
		}
		isSign := func(sign string) bool { return strings.Contains(message, sign) }
		if slices.ContainsFunc(signs, isSign) && names[name] != "" {
			all = append(all, interruption{r.Seq, names[name], r.Text})
		}
	}
	return all
}

// splitDevice splits "nvme nvme3: text".
func splitDevice(text string) (name, message string, found bool) {
	text, found = strings.CutPrefix(text, "nvme ")
	name, message, ok := strings.Cut(text, ": ")
	return name, message, found && ok && strings.HasPrefix(name, "nvme")
}

// watcher is what Run knows of the kernel's log.
type watcher struct {
	log   *kmsg.Log         // nil: it cannot be read
	names map[string]string // subsystems of controllers
	live  map[string]bool   // controllers that have been live
	last  uint64            // the newest message seen, also by earlier processes
	todo  map[string]finding
}

// finding is what is to be recorded, by the record's name.
type finding struct {
	record record
	what   string
}

func (a *Attacher) newWatcher() (w watcher, err error) {
	w.names, w.live, w.todo = map[string]string{}, map[string]bool{}, map[string]finding{}
	if w.last, err = a.records.position(); err != nil {
		return w, err
	}
	w.log, err = kmsg.Open()
	return w, err
}

func (w *watcher) close() {
	if w.log != nil {
		w.log.Close()
	}
}

// checkLog records the interruptions since the last call, and those that the
// last call could not record. It reads the log last: messages are read once.
func (a *Attacher) checkLog(ctx context.Context, w *watcher) error {
	if w.log == nil {
		return nil
	}
	all, err := a.records.all()
	if err != nil {
		return err
	}
	controllers, err := a.kernel.Controllers()
	if err != nil {
		return err
	}
	messages, err := w.log.Read()
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if w.names[c.Name] == "" {
			w.names[c.Name] = c.NQN
		}
	}
	defer func() { // one that is being reset now has been live
		for _, c := range controllers {
			w.live[c.Name] = w.live[c.Name] || c.State == kernel.StateLive
		}
	}()
	newest := w.last
	if len(messages) > 0 {
		found := interrupted(messages, w.names, w.live)
		for _, r := range all {
			if what := uncertainty(r, found, messages[0].Seq, w.last); what != "" && r.Uncertain == "" {
				w.todo[r.name] = finding{r, what}
			}
		}
		newest = max(newest, messages[len(messages)-1].Seq)
	}
	isNew := newest > w.last
	w.last = newest
	for name, f := range w.todo {
		if failed := a.setUncertain(ctx, f); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		delete(w.todo, name)
	}
	if err == nil && isNew {
		err = a.records.putPosition(newest)
	}
	return err
}

// uncertainty says what happened to the connections of a volume since its disk
// was found. first is the log's oldest message, last the newest that an earlier
// call has seen.
func uncertainty(r record, found []interruption, first, last uint64) string {
	if r.Device.IsZero() {
		return ""
	}
	for _, i := range found {
		if i.nqn == r.NQN && i.seq > r.LogSeq {
			return "a connection was interrupted: " + i.text
		}
	}
	if seen := max(r.LogSeq, last); first > seen+1 {
		return fmt.Sprintf("%d messages of the kernel's log were overwritten before they were read, so an interrupted connection can be among them", first-seen-1)
	}
	return ""
}

// recordLost is the Uncertain of a volume that is attached to a connection older
// than all records of the subsystem: these were lost, and with them what is known
// about the connection.
const recordLost = "the record of the connection was lost, and it can have been interrupted before"

// earlierUncertainty returns the Uncertain of a new record: recordLost, or empty if
// the subsystem is not connected yet, or has been recorded since it was.
func (a *Attacher) earlierUncertainty(l access.NVMe) (string, error) {
	r := record{NQN: l.NQN, HostNQN: a.host(l).nqn}
	controllers, err := a.controllersOf(r)
	if err != nil || len(controllers) == 0 {
		return "", err
	}
	all, err := a.records.all()
	if slices.ContainsFunc(all, func(o record) bool { return o.NQN == r.NQN && o.HostNQN == r.HostNQN && o.Uncertain != recordLost }) {
		return "", err
	}
	return recordLost, err
}

// setUncertain changes the record, unless the volume was detached or attached
// again meanwhile.
func (a *Attacher) setUncertain(ctx context.Context, f finding) error {
	_, err := run(ctx, a, f.record.NQN, "record an interruption", node.Target{Device: f.record.Device}, func(context.Context) (struct{}, error) {
		now, found, err := a.records.read(f.record.name)
		if err != nil || !found || now.Device != f.record.Device || now.LogSeq != f.record.LogSeq {
			return struct{}{}, err
		}
		now.Uncertain = fmt.Sprintf("%s, found at %s", f.what, time.Now().UTC().Format(time.RFC3339))
		return struct{}{}, a.records.put(now)
	})
	return err
}

// logEnd returns the number of the newest message.
func logEnd() (uint64, error) {
	log, err := kmsg.Open()
	if err != nil {
		return 0, err
	}
	defer log.Close()
	messages, err := log.Read()
	if err != nil || len(messages) == 0 {
		return 0, err
	}
	return messages[len(messages)-1].Seq, nil
}

const positionFile = "log-position"

// position is the newest message that checkLog has seen in this boot.
func (s records) position() (seq uint64, err error) {
	data, err := os.ReadFile(filepath.Join(s.dir, positionFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	boot := ""
	if _, err := fmt.Sscanf(string(data), "%s %d", &boot, &seq); err != nil || boot != s.boot {
		return 0, nil
	}
	return seq, nil
}

func (s records) putPosition(seq uint64) error {
	return durable.Write(filepath.Join(s.dir, positionFile), fmt.Appendf(nil, "%s %d\n", s.boot, seq))
}
