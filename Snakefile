# A study's shards as jobs of a cluster (pip install snakemake, and its executor's plugin):
#
#   snakemake --config study=ptq profile=full shards=8 --jobs 8 --keep-going --executor slurm
#
# Without --executor they run here. `workers=4` in --config gives each job as many processes and
# cores, `options="--set episodes=10"` what else `quarl-nb run` takes. Machines share this folder and
# are alike (a GPU in all or in none). A shard that is whole leaves a flag in runs/shards; the same
# command goes on with the others, cell by cell. Flags know nothing of cells that were added or
# records that were deleted since: with --forceall every shard looks again for what it lacks.
STUDY, PROFILE = config["study"], config.get("profile", "quick")
SHARDS = int(config.get("shards", 2))

rule all:
    input:
        expand("runs/shards/{study}-{profile}/{i}-of-{n}", study=STUDY, profile=PROFILE,
               i=range(1, SHARDS + 1), n=SHARDS)

rule shard:
    output: touch("runs/shards/{study}-{profile}/{i}-of-{n}")
    threads: int(config.get("workers", 1))
    params: options=config.get("options", "")
    shell:
        "quarl-nb run {wildcards.study} --profile {wildcards.profile} "
        "--shard {wildcards.i}/{wildcards.n} --workers {threads} {params.options}"
