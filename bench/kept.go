package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
)

// stored has the peers keep saves of the tree as it grows older, and adds up
// what they keep.
func (b *bench) stored(ctx context.Context, count int, repos []repo) error {
	if err := b.saveAll(ctx, repos, b.tree, 1); err != nil {
		return err
	}
	before, err := b.sizes(ctx, repos)
	if err != nil {
		return err
	}
	b.addSizes(storedFirst, before)
	path, size, err := largest(b.tree)
	if err != nil {
		return err
	}
	if size >= huge {
		return b.patched(ctx, repos, before, func() error { return patch(path, size/2, 100) })
	}
	if count <= few || count >= many {
		return nil
	}
	return b.growth(ctx, repos, count)
}

// patched saves after a change, and adds what that added.
func (b *bench) patched(ctx context.Context, repos []repo, before []int64, change func() error) error {
	if err := change(); err != nil {
		return err
	}
	if err := b.saveAll(ctx, repos, b.tree, 2); err != nil {
		return err
	}
	after, err := b.sizes(ctx, repos)
	if err != nil {
		return err
	}
	for i := range after {
		after[i] -= before[i]
	}
	b.addSizes(storedPatch, after)
	return nil
}

// growth makes ten saves of the tree with changes between, then one of another
// tree like it.
func (b *bench) growth(ctx context.Context, repos []repo, count int) error {
	for n := 2; n <= 10; n++ {
		if err := edit(b.tree, count/100, 100+n); err != nil {
			return err
		}
		if err := b.saveAll(ctx, repos, b.tree, n); err != nil {
			return err
		}
	}
	sizes, err := b.sizes(ctx, repos)
	if err != nil {
		return err
	}
	b.addSizes(storedTen, sizes)
	second := b.tree + "-2"
	if err := run(ctx, exec.Command("cp", "-a", b.tree, second)); err != nil {
		return err
	}
	if err := edit(second, count/20, 200); err != nil {
		return err
	}
	for _, r := range repos {
		if err := r.add(ctx, second); err != nil {
			return err
		}
	}
	if err := b.saveAll(ctx, repos, second, 11); err != nil {
		return err
	}
	sizes, err = b.sizes(ctx, repos)
	b.addSizes(storedSecond, sizes)
	return err
}

func (b *bench) saveAll(ctx context.Context, repos []repo, tree string, n int) error {
	for i, r := range repos {
		if err := run(ctx, r.save(tree, n)); err != nil {
			return fmt.Errorf("%s, save %d: %w", b.peers[i].name(), n, err)
		}
	}
	return nil
}

// sizes is what each peer keeps, after it tidied up.
func (b *bench) sizes(ctx context.Context, repos []repo) ([]int64, error) {
	sizes := make([]int64, len(repos))
	for i, r := range repos {
		if cmd := r.tidy(); cmd != nil {
			if err := run(ctx, cmd); err != nil {
				return nil, fmt.Errorf("%s: %w", b.peers[i].name(), err)
			}
		}
		var err error
		if sizes[i], err = diskUse(r.stored()); err != nil {
			return nil, err
		}
	}
	return sizes, nil
}

func (b *bench) addSizes(step string, sizes []int64) {
	for i, n := range sizes {
		b.table.add(step, b.peers[i].name(), float64(n)/1e6)
	}
}

// memory saves and restores once more, each with a worker in a process of its
// own.
func (b *bench) memory(ctx context.Context) error {
	p := sandkeep{bin: b.bin, sync: "interval", split: true}
	if !b.table.has(p.name()) {
		return nil
	}
	opened, err := p.open(ctx, filepath.Join(b.dir, "memory"), filepath.Dir(b.tree))
	if err != nil {
		return err
	}
	r := opened.(*sandkeepRepo)
	err = errors.Join(r.add(ctx, b.tree), r.freshWorker(), run(ctx, r.save(b.tree, 1)))
	saving, err2 := r.peak()
	err = errors.Join(err, err2, r.freshWorker(), run(ctx, r.restore(b.tree, 1, "restored")))
	restoring, err2 := r.peak()
	b.table.add(memorySave, p.name(), float64(saving)/(1<<20))
	b.table.add(memoryRestore, p.name(), float64(restoring)/(1<<20))
	return errors.Join(err, err2, r.close())
}
